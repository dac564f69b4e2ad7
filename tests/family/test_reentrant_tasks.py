"""The reentrant lock, for tasks: it belongs to its task, and ends with it."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.aio.support import Run, at_once, until
from tests.family.support import NAME
from tests.redis.support import LONG_S, Backend
from wheel_lock import LockContext, LockLost, LockNotHeld, LossReason, WrongThread
from wheel_lock.aio.primitives import ReentrantLock
from wheel_lock.runtime.notifier import NOTIFIER


def test_it_is_held_until_it_was_released_as_often_as_it_was_acquired(
    run: Run, backend: Backend, context: LockContext
) -> None:
    async def main() -> None:
        lock, another = context.asyncio.reentrant_lock(NAME), context.asyncio.reentrant_lock(NAME)
        assert await lock.acquire()
        assert at_once(lock.acquire()) is True, "which costs no round trip"
        assert at_once(another.acquire()) is True
        assert lock.count == 3
        assert [at_once(lock.release()), at_once(lock.release())] == [False, False]
        assert backend.view.exists(NAME)
        assert await lock.release() is True
        assert (another.count, another.is_held) == (0, False)
        assert not backend.view.exists(NAME)
        with pytest.raises(LockNotHeld):
            await lock.release()

    run(main())


def test_blocks_nest(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        lock = context.asyncio.reentrant_lock(NAME)
        async with lock:
            async with lock, context.asyncio.reentrant_lock(NAME) as another:
                assert another.count == 3
            assert lock.count == 1
            assert lock.is_held
        assert not lock.is_held
        assert not backend.view.exists(NAME)

    run(main())


def test_another_task_is_kept_out_and_may_not_release(run: Run, context: LockContext) -> None:
    async def main() -> None:
        lock = context.asyncio.reentrant_lock(NAME)
        async with lock:

            async def intrude() -> None:
                assert lock.is_held
                assert lock.count == 0
                assert not await lock.acquire(blocking=False)
                with pytest.raises(WrongThread, match="another task"):
                    await lock.release()
                with pytest.raises(WrongThread, match="another task"):
                    await lock.extend(1.0)

            await asyncio.create_task(intrude())
            assert lock.count == 1

    run(main())


def test_a_thread_and_a_task_of_it_are_two(run: Run, context: LockContext) -> None:
    lock = context.reentrant_lock(NAME)

    async def main() -> None:
        assert not await context.asyncio.reentrant_lock(NAME).acquire(blocking=False)

    with lock:
        run(main())

    async def the_other_way_round() -> None:
        async with context.asyncio.reentrant_lock(NAME):
            assert not lock.acquire(blocking=False)

    run(the_other_way_round())


def test_tasks_that_share_an_object_take_turns(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        lock, inside, turns = context.asyncio.reentrant_lock(NAME, blocking_timeout=LONG_S), 0, 0

        async def work() -> None:
            nonlocal inside, turns
            async with lock:
                inside += 1
                async with lock:
                    await asyncio.sleep(0)
                    assert (inside, lock.count) == (1, 2)
                await asyncio.sleep(0)
                inside -= 1
                turns += 1

        await asyncio.gather(*[work() for _ in range(50)])
        assert turns == 50
        assert not backend.view.exists(NAME)
        assert context.stats().held == 0

    run(main())


@pytest.mark.parametrize("times", [1, 2])
def test_a_lock_whose_task_has_ended_is_renewed_no_more(
    run: Run, backend: Backend, context: LockContext, times: int
) -> None:
    losses: list[LossReason] = []

    async def main() -> None:
        lock = context.asyncio.reentrant_lock(
            NAME, timeout=1.2, renew_every=0.05, on_lost=lambda event: losses.append(event.reason)
        )

        async def acquire() -> None:
            for _ in range(times):
                await lock.acquire()

        await asyncio.create_task(acquire())
        assert lock.is_held
        with pytest.raises(WrongThread):
            await lock.release()
        await until(lambda: losses, message="it is told")
        assert losses == [LossReason.ABANDONED]
        assert not lock.is_held
        # Free within its timeout, for this very task as well.
        assert await context.asyncio.reentrant_lock(NAME, blocking_timeout=LONG_S).acquire()
        await context.asyncio.reentrant_lock(NAME).release()

    with pytest.warns(ResourceWarning, match="was abandoned"):
        run(main())
        assert NOTIFIER.drain(LONG_S)
    assert not backend.view.exists(NAME)


@pytest.mark.parametrize("times", [1, 2])
def test_a_loss_cancels_the_task_inside_and_its_blocks_are_left_as_often_as_they_were_entered(
    run: Run, backend: Backend, context: LockContext, times: int
) -> None:
    async def main() -> None:
        lock = context.asyncio.reentrant_lock(NAME, renew_every=0.02, cancel_on_lost=True)

        async def work(deeper: int) -> None:
            async with lock:
                if deeper:
                    await work(deeper - 1)
                backend.view.delete(NAME)
                await asyncio.sleep(LONG_S)

        with pytest.raises(LockLost) as caught:
            await work(times - 1)
        assert caught.value.reason is LossReason.KEY_GONE
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        assert lock.count == 0
        assert await lock.acquire(blocking=False)
        await lock.release()

    run(main())


def test_a_cancelled_task_leaves_its_blocks_in_order(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def work() -> None:
            lock = context.asyncio.reentrant_lock(NAME)
            async with lock, lock:
                inside.set()
                await asyncio.sleep(LONG_S)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not backend.view.exists(NAME)
        assert context.stats().held == 0

    run(main())


def test_a_coroutine_that_is_thrown_away_in_the_middle_leaves_nothing_held(
    run: Run, backend: Backend, context: LockContext
) -> None:
    async def main() -> None:
        async def hold(lock: ReentrantLock) -> None:
            async with lock, lock:
                await asyncio.get_running_loop().create_future()

        lock = context.asyncio.reentrant_lock(NAME)
        assert await lock.acquire()
        coroutine = hold(lock)
        coroutine.send(None)  # by hand, so in this very task
        assert lock.count == 3
        coroutine.close()
        del coroutine
        gc.collect()
        assert lock.count == 1
        assert await lock.release() is True
        await until(lambda: not backend.view.exists(NAME))

    run(main())


def test_after_a_loss_every_release_says_so(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        lock = context.asyncio.reentrant_lock(NAME, renew_every=0.02)
        await lock.acquire()
        await lock.acquire()
        backend.view.delete(NAME)
        await until(lambda: lock.lost is not None)
        with pytest.raises(LockLost):
            await lock.acquire()
        for _ in range(2):
            with pytest.raises(LockLost):
                await lock.release()
        assert await lock.acquire(blocking=False)
        assert await lock.release() is True

    run(main())
