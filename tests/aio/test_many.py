"""Locks in bulk, awaited: other tasks have their turn meanwhile, and the locks belong to no task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from wheel_lock import LockContext
from wheel_lock.asyncio import Lock
from wheel_lock.locks.bulk import BulkAcquire

pytestmark = pytest.mark.loops("asyncio", "uvloop")

NAMES = [f"shard:{number}" for number in range(4500)]  # more names than one part of a bulk acquire


async def test_other_tasks_run_while_the_locks_are_made(context: LockContext, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(BulkAcquire, "submit", counted)
    turning = asyncio.create_task(turn())
    locks = await context.asyncio.acquire_many(NAMES)
    turning.cancel()
    assert turns_until_made == 2  # one after each part
    await context.asyncio.release_many(locks.values())


async def test_locks_in_bulk_belong_to_no_task_by_default(context: LockContext) -> None:
    tasks = context.asyncio
    locks = await asyncio.create_task(tasks.acquire_many(["a", "b"]))
    await asyncio.create_task(tasks.release_many(locks.values()))
    locks = await asyncio.create_task(tasks.acquire_many(["a", "b"], thread_local=True))
    await tasks.release_many(locks.values())  # nor are they kept from others that know of them
    assert context.stats().held == 0
