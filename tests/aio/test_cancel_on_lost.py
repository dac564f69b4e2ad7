"""`cancel_on_lost`: whoever is inside `async with` is cancelled when the lock is lost, and hears why where the block ends.

Somebody else's cancellation is never taken for our own, and our own never gets out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from tests.aio.scene import TIMEOUT_S, Scene, cancelling, undisturbed
from tests.aio.support import Run, ended, raising, until
from wheel_lock import LockLost, LossReason
from wheel_lock.aio import call as aio_call
from wheel_lock.lease import Lease

# The loss


@pytest.mark.parametrize("thread_local", [True, False])
def test_a_key_that_is_deleted_cancels_whoever_is_inside(run: Run, scene: Scene, thread_local: bool) -> None:
    async def main() -> None:
        async with raising(LockLost) as caught, scene.lock(thread_local=thread_local):
            scene.delete()
            await asyncio.sleep(60.0)
        assert caught.value.reason is LossReason.KEY_GONE
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        await undisturbed()

    run(main())


def test_a_deadline_that_passes_cancels_whoever_is_inside(run: Run, scene: Scene) -> None:
    async def main() -> None:
        async with raising(LockLost) as caught, scene.lock():
            scene.clock.jump(TIMEOUT_S)
            await asyncio.sleep(60.0)
        assert caught.value.reason is LossReason.NOT_CONFIRMED
        await undisturbed()

    run(main())


def test_a_context_that_is_closed_cancels_whoever_is_inside(run: Run, scene: Scene) -> None:
    async def main() -> None:
        async with raising(LockLost) as caught, scene.lock():
            await asyncio.gather(scene.context.asyncio.close(), asyncio.sleep(60.0))
        assert caught.value.reason is LossReason.CONTEXT_CLOSED

    run(main())


def test_a_body_that_waits_for_nothing_hears_of_the_loss_at_its_end(run: Run, scene: Scene) -> None:
    async def main() -> None:
        async with raising(LockLost), scene.lock():
            scene.delete()
        await undisturbed()

    run(main())


def test_a_body_that_swallows_the_cancellation_hears_of_the_loss_at_its_end(run: Run, scene: Scene) -> None:
    async def main() -> None:
        async with raising(LockLost) as caught, scene.lock():
            scene.delete()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(60.0)
            await asyncio.sleep(0)  # cancelled once, and once only
        assert caught.value.__cause__ is None
        await undisturbed()

    run(main())


def test_what_the_body_raises_after_the_cancellation_is_the_error_to_see(run: Run, scene: Scene) -> None:
    async def main() -> None:
        async with raising(ZeroDivisionError) as caught, scene.lock():
            scene.delete()
            try:
                await asyncio.sleep(60.0)
            finally:
                raise ZeroDivisionError
        assert caught.value.__notes__ == ["and the lock could not be released: The lock 'order:42' was lost: key gone"]
        await undisturbed()

    run(main())


def test_without_a_loss_nothing_is_cancelled(run: Run, scene: Scene) -> None:
    async def main() -> None:
        for _ in range(3):
            lock = scene.lock()
            async with lock:
                scene.clock.advance(3 * TIMEOUT_S)
                await asyncio.sleep(0)
            assert not lock._blocks
            scene.delete()  # of what is not held any more
            await undisturbed()

    run(main())


def test_a_lock_acquired_without_a_block_cancels_nobody(run: Run, scene: Scene) -> None:
    async def main() -> None:
        lock = scene.lock()
        await lock.acquire()
        scene.delete()
        await undisturbed()
        assert lock.lost is LossReason.KEY_GONE

    run(main())


@pytest.mark.parametrize("guarded", [True, False])
def test_a_loss_between_the_grant_and_the_block_is_told_there_and_cancels_nobody_later(
    run: Run, scene: Scene, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    guard = aio_call.TaskOwner.guard

    def losing(owner: aio_call.TaskOwner, lease: Lease, alarm: Callable[[], object]) -> None:
        if not guarded:
            scene.delete()
        guard(owner, lease, alarm)
        if guarded:
            scene.delete()

    async def main() -> None:
        monkeypatch.setattr(aio_call.TaskOwner, "guard", losing)
        async with raising(LockLost), scene.lock():
            pytest.fail("nobody is let in")
        await undisturbed()

    run(main())


# Somebody else's cancellation


@pytest.mark.parametrize("pauses", range(5))
@pytest.mark.parametrize("elsewhere_first", [True, False])
def test_a_cancellation_from_elsewhere_is_never_swallowed(
    run: Run, scene: Scene, elsewhere_first: bool, pauses: int
) -> None:
    async def work(inside: asyncio.Event) -> None:
        async with scene.lock():
            inside.set()
            try:
                await asyncio.sleep(60.0)
            finally:
                for _ in range(10):
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        pass  # clean-up goes on

    async def main() -> None:
        task = asyncio.create_task(work(inside := asyncio.Event()))
        await inside.wait()
        steps: list[Callable[[], object]] = [scene.delete, task.cancel]
        if elsewhere_first:
            steps.reverse()
        steps[0]()
        for _ in range(pauses):
            await asyncio.sleep(0)
        assert not task.done()
        steps[1]()
        await ended(task)
        assert task.cancelled()

    run(main())


def test_a_cancellation_that_came_before_the_block_is_not_ours(run: Run, scene: Scene) -> None:
    cleaned_up = []

    async def work() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            async with raising(LockLost), scene.lock():  # it cleans up under a lock, and that is lost
                scene.delete()
                await asyncio.sleep(60.0)
            cleaned_up.append(cancelling())
            raise

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await ended(task)
        assert task.cancelled()
        assert cleaned_up == [1]

    run(main())


# In combination


@pytest.mark.parametrize("lost", ["outer", "inner", "both"])
def test_nested_locks(run: Run, scene: Scene, lost: str) -> None:
    async def main() -> None:
        async with raising(LockLost) as caught, scene.lock("outer"), scene.lock("inner"):
            scene.delete(*(["outer", "inner"] if lost == "both" else [lost]))
            await asyncio.sleep(60.0)
        assert caught.value.lock_name == ("outer" if lost == "both" else lost)
        await undisturbed()
        await until(lambda: scene.context.stats().held == 0)
        assert scene.real.view.keys() == []

    run(main())


@pytest.mark.parametrize("lock_outside", [True, False])
def test_beside_a_time_limit_that_is_not_reached(run: Run, scene: Scene, lock_outside: bool) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            stack.enter_context(pytest.raises(LockLost))
            managers: list[AbstractAsyncContextManager[object]] = [scene.lock(), asyncio.timeout(60.0)]
            for manager in managers if lock_outside else managers[::-1]:
                await stack.enter_async_context(manager)
            scene.delete()
            await asyncio.sleep(60.0)
        await undisturbed()

    run(main())


@pytest.mark.parametrize("lock_outside", [True, False])
def test_a_time_limit_and_a_loss_at_once_end_with_the_outer_one(run: Run, scene: Scene, lock_outside: bool) -> None:
    async def main() -> None:
        async with raising(LockLost if lock_outside else TimeoutError), AsyncExitStack() as stack:
            limit = asyncio.timeout(60.0)
            managers: list[AbstractAsyncContextManager[object]] = [scene.lock(), limit]
            for manager in managers if lock_outside else managers[::-1]:
                await stack.enter_async_context(manager)
            scene.delete()
            limit.reschedule(0.0)
            await asyncio.sleep(60.0)
        await undisturbed()

    run(main())


def test_a_task_group_inside_is_cancelled_too(run: Run, scene: Scene) -> None:
    async def main() -> None:
        children = []
        async with raising(LockLost), scene.lock(), asyncio.TaskGroup() as group:
            children += [group.create_task(asyncio.sleep(60.0)) for _ in range(3)]
            await asyncio.sleep(0)
            scene.delete()
        assert all(child.cancelled() for child in children)
        await undisturbed()

    run(main())


def test_a_member_of_a_task_group_fails_with_the_loss(run: Run, scene: Scene) -> None:
    async def hold(inside: asyncio.Event) -> None:
        async with scene.lock():
            inside.set()
            await asyncio.sleep(60.0)

    async def main() -> None:
        async with raising(ExceptionGroup) as caught, asyncio.TaskGroup() as group:
            group.create_task(hold(inside := asyncio.Event()))
            await inside.wait()
            scene.delete()
        assert caught.group_contains(LockLost, match="key gone")

    run(main())
