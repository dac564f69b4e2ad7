"""`cancel_on_lost` where one object serves many: each task is told of what it has lost itself, and of nothing else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.aio.lock_loser import LockLoser, cancelling, undisturbed
from tests.support.event_loops import at_once, ended, raising
from wheel_lock import LockLost, LockNotHeld, LossReason
from wheel_lock.asyncio import Lock

pytestmark = pytest.mark.loops("asyncio", "uvloop")


class Worker:
    """A task inside a block of a lock, until it is told to leave it."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.cancelling = 0
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            async with self.lock:
                self.inside.set()
                await self.leave.wait()
        finally:
            self.cancelling = cancelling()


@pytest.mark.parametrize("thread_local", [True, False])
async def test_a_loss_cancels_who_has_lost_and_not_who_has_acquired_since(loser: LockLoser, thread_local: bool) -> None:
    lock = loser.lock(thread_local=thread_local)
    first = Worker(lock)
    await first.inside.wait()
    loser.real.view.delete("order:42")
    with pytest.raises(LockLost):
        await lock.extend(1.0)  # so that the loss is noticed: the second comes before the first has been cancelled
    second = Worker(lock)
    await second.inside.wait()
    await ended(first.task)
    assert isinstance(first.task.exception(), LockLost)
    assert first.cancelling == 0
    assert lock.is_held
    assert await lock.owned()
    loser.delete()
    await ended(second.task)
    assert isinstance(second.task.exception(), LockLost)
    assert lock._blocks == []


async def test_a_lock_that_is_acquired_anew_in_the_block_is_released_at_its_end(loser: LockLoser) -> None:
    lock = loser.lock()
    async with lock:
        loser.delete()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60.0)
        assert await lock.acquire()
    assert not loser.real.view.exists("order:42")
    assert lock.lost is None
    await undisturbed()


async def test_a_block_that_another_task_leaves(loser: LockLoser) -> None:
    lock = loser.lock()
    stack = AsyncExitStack()

    async def enter() -> None:
        await stack.enter_async_context(lock)
        await undisturbed()

    await asyncio.create_task(enter())
    await stack.aclose()
    assert not loser.real.view.exists("order:42")
    async with lock:  # and what was left behind is forgotten
        assert len(lock._blocks or ()) == 1


async def test_what_was_acquired_by_hand_is_not_taken_for_the_block_of_another_task(loser: LockLoser) -> None:
    lock, lost, leave = loser.lock(), asyncio.Event(), asyncio.Event()

    async def lose() -> None:
        async with lock:
            loser.delete()
            try:
                await asyncio.sleep(60.0)
            finally:
                lost.set()
                await leave.wait()

    losing = asyncio.create_task(lose())
    await lost.wait()
    async with AsyncExitStack() as stack:
        assert await lock.acquire()
        stack.push_async_exit(lock)
    assert not loser.real.view.exists("order:42")
    leave.set()
    with pytest.raises(LockLost):
        await losing


# Adopted locks


async def test_the_block_of_an_adopted_lock_is_guarded(loser: LockLoser) -> None:
    lock = loser.lock()
    await lock.acquire()
    text = await lock.export()
    adopting = loser.context.asyncio.adopt(text, cancel_on_lost=True)
    async with raising(LockLost) as caught, await adopting as adopted:
        assert adopted.is_held
        loser.delete()
        await asyncio.sleep(60.0)
    assert caught.value.reason is LossReason.KEY_GONE
    await undisturbed()


async def test_a_lock_that_is_exported_in_its_block_cancels_nobody(loser: LockLoser) -> None:
    lock = loser.lock()
    async with raising(LockNotHeld, match="it was handed over"), lock:
        await lock.export()
        loser.delete()
    await undisturbed()
    with pytest.raises(LockNotHeld):
        at_once(lock.release())
