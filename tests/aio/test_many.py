"""Locks in bulk, awaited: other tasks have their turn meanwhile, and a cancelled one leaves nothing acquired."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest

from tests.aio.support import Run, ended, until
from tests.redis.support import Backend
from wheel_lock import LockContext, LocksLost, LossReason, TooManyLocks
from wheel_lock.asyncio import Lock
from wheel_lock.locks.bulk import BulkAcquire

NAMES = [f"shard:{number}" for number in range(4500)]  # more than one part


def none_left(real: Backend, context: LockContext) -> bool:
    return context.stats().held == 0 and real.view.dbsize() == 0 and context._engine.leases.acquiring == 0


def of(locks: dict[str, Lock | None]) -> list[Lock]:
    found = [lock for lock in locks.values() if lock is not None]
    assert len(found) == len(locks)
    return found


def test_many_locks_are_acquired_and_released(run: Run, real: Backend, context: LockContext) -> None:
    async def main() -> None:
        real.view.set("shard:7", "somebody")
        locks = await context.asyncio.acquire_many(NAMES + NAMES[:10], timeout=20.0)
        assert list(locks) == NAMES
        assert [name for name, lock in locks.items() if lock is None] == ["shard:7"]
        assert real.view.dbsize() == 4500
        assert all(lock.is_held and lock.timeout == 20.0 for lock in locks.values() if lock is not None)
        await context.asyncio.release_many(locks.values())
        real.view.delete("shard:7")
        assert none_left(real, context)

    run(main())


def test_other_tasks_have_their_turn_while_the_locks_are_made(
    run: Run, context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, turns_until_made = 0, 0
    hand_over = BulkAcquire.submit

    def counted(many: BulkAcquire[str, Lock]) -> Iterator[None]:
        nonlocal turns_until_made
        yield from hand_over(many)
        turns_until_made = turns

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        monkeypatch.setattr(BulkAcquire, "submit", counted)
        turning = asyncio.create_task(turn())
        locks = await context.asyncio.acquire_many(NAMES)
        turning.cancel()
        assert turns_until_made == 2  # one after each part
        await context.asyncio.release_many(locks.values())

    run(main())


def test_locks_in_bulk_belong_to_no_task_by_default(run: Run, context: LockContext) -> None:
    async def main() -> None:
        tasks = context.asyncio
        locks = await asyncio.create_task(tasks.acquire_many(["a", "b"]))
        await asyncio.create_task(tasks.release_many(locks.values()))
        locks = await asyncio.create_task(tasks.acquire_many(["a", "b"], thread_local=True))
        await tasks.release_many(locks.values())  # nor are they kept from others that know of them
        assert context.stats().held == 0

    run(main())


def test_locks_that_were_lost_are_told_of_together(run: Run, real: Backend, context: LockContext) -> None:
    async def main() -> None:
        locks = await context.asyncio.acquire_many(["a", "b", "c", "d"])
        real.view.delete("a")
        real.view.set("c", "somebody")
        with pytest.raises(LocksLost) as caught:
            await context.asyncio.release_many(locks.values())
        assert caught.value.losses == {"a": LossReason.KEY_GONE, "c": LossReason.TAKEN}
        assert real.view.keys() == [b"c"]

    run(main())


@pytest.mark.parametrize("all_or_nothing", [True, False])
def test_a_bulk_acquire_that_is_cancelled_while_it_is_handed_over_leaves_nothing(
    run: Run, real: Backend, context: LockContext, all_or_nothing: bool
) -> None:
    async def main() -> None:
        for pauses in range(5):
            task = asyncio.create_task(context.asyncio.acquire_many(NAMES, all_or_nothing=all_or_nothing))
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()
            await ended(task)
            assert task.cancelled()
            await until(lambda: none_left(real, context))

    run(main())


def test_a_bulk_acquire_that_is_cancelled_at_any_time_leaves_nothing(
    run: Run, real: Backend, context: LockContext
) -> None:
    async def main() -> None:
        names, cancelled = NAMES[:800], 0
        for number in range(30):
            task = asyncio.create_task(context.asyncio.acquire_many(names, all_or_nothing=bool(number % 2)))
            await asyncio.sleep(number * 4e-4)
            cancelled += task.cancel()
            await ended(task)
            if not task.cancelled():
                await context.asyncio.release_many(task.result().values())
            await until(lambda: none_left(real, context))
        assert cancelled

    run(main())


def test_a_bulk_acquire_whose_reply_is_under_way_leaves_nothing_when_it_is_cancelled(run: Run, real: Backend) -> None:
    async def main() -> None:
        proxy = real.proxy()
        context = real.context_through(proxy)
        await context.asyncio.lock("warm-up").locked()
        proxy.to_client.delay_s = math.inf
        task = asyncio.create_task(context.asyncio.acquire_many(NAMES))
        await until(lambda: real.view.dbsize() > 1000)
        task.cancel()
        await ended(task)
        proxy.to_client.delay_s = 0.0
        await until(lambda: none_left(real, context))

    run(main())


def test_a_bulk_release_that_is_cancelled_is_carried_out_all_the_same(
    run: Run, real: Backend, context: LockContext
) -> None:
    async def main() -> None:
        locks = await context.asyncio.acquire_many(NAMES)
        task = asyncio.create_task(context.asyncio.release_many(of(locks)))
        await asyncio.sleep(0)
        task.cancel()
        await ended(task)
        assert task.cancelled()
        await until(lambda: none_left(real, context))

    run(main())


def test_all_or_nothing(run: Run, real: Backend, context: LockContext) -> None:
    async def main() -> None:
        real.view.set(NAMES[-1], "somebody")
        locks = await context.asyncio.acquire_many(NAMES, all_or_nothing=True)
        assert list(locks) == NAMES
        assert set(locks.values()) == {None}
        assert real.view.dbsize() == 1
        real.view.delete(NAMES[-1])
        locks = await context.asyncio.acquire_many(NAMES, all_or_nothing=True)
        assert len(of(locks)) == 4500
        await context.asyncio.release_many(locks.values())

    run(main())


def test_more_than_the_context_allows_are_not_acquired(run: Run, real: Backend) -> None:
    async def main() -> None:
        context = real.context(max_held=4499)
        with pytest.raises(TooManyLocks):
            await context.asyncio.acquire_many(NAMES)
        assert none_left(real, context)
        await context.asyncio.release_many((await context.asyncio.acquire_many(NAMES[1:])).values())

    run(main())


def test_a_context_that_is_closed_meanwhile(run: Run, real: Backend) -> None:
    async def main() -> None:
        context = real.context()
        task = asyncio.create_task(context.asyncio.acquire_many(NAMES))
        await until(lambda: real.view.dbsize() > 100)
        await context.asyncio.close()
        await ended(task)
        await until(lambda: real.view.dbsize() == 0)
        if task.exception() is None:
            assert not any(lock is not None and lock.is_held for lock in task.result().values())

    run(main())
