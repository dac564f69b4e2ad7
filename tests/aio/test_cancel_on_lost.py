"""`cancel_on_lost`: whoever is inside `async with` is cancelled when the lock is lost, and hears why where the block ends.

A cancellation by others is never taken for our own, and our own never gets out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from tests.aio.lock_loser import TIMEOUT_S, LockLoser, cancelling, undisturbed
from tests.support.event_loops import ended, raising
from wheel_lock import LockLost, LossReason
from wheel_lock.aio import call as aio_call
from wheel_lock.aio.cancellation import EnteredBlock
from wheel_lock.asyncio import Lock

pytestmark = pytest.mark.loops("asyncio", "uvloop")

# The loss


@pytest.mark.parametrize("thread_local", [True, False])
async def test_a_loss_cancels_whoever_is_inside(loser: LockLoser, thread_local: bool) -> None:
    def lapse() -> None:
        loser.clock.jump(TIMEOUT_S)

    for lose, reason in ((loser.delete, LossReason.KEY_GONE), (lapse, LossReason.NOT_CONFIRMED)):
        async with raising(LockLost) as caught, loser.lock(thread_local=thread_local):
            lose()
            await asyncio.sleep(60.0)
        assert caught.value.reason is reason
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        await undisturbed()


async def test_a_body_that_swallows_the_cancellation_hears_of_the_loss_at_its_end(loser: LockLoser) -> None:
    async with raising(LockLost) as caught, loser.lock():
        loser.delete()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60.0)
        await asyncio.sleep(0)  # cancelled once, and once only
    assert caught.value.__cause__ is None
    await undisturbed()


async def test_what_the_body_raises_after_the_cancellation_is_the_error_to_see(loser: LockLoser) -> None:
    async with raising(ZeroDivisionError) as caught, loser.lock():
        loser.delete()
        try:
            await asyncio.sleep(60.0)
        finally:
            raise ZeroDivisionError
    assert caught.value.__notes__ == ["and the lock could not be released: The lock 'order:42' was lost: key gone"]
    await undisturbed()


async def test_without_a_loss_nothing_is_cancelled(loser: LockLoser) -> None:
    for _ in range(3):
        lock = loser.lock()
        async with lock:
            loser.clock.advance(3 * TIMEOUT_S)
            await asyncio.sleep(0)
        assert not lock._blocks
        loser.delete()  # it is no longer held
        await undisturbed()


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_loss_between_the_grant_and_the_block_is_raised_there_and_cancels_no_task_later(
    loser: LockLoser, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    guard = EnteredBlock.guard

    def losing(block: EnteredBlock, owner: aio_call.TaskOwner) -> None:
        if not guarded:
            loser.delete()
        guard(block, owner)
        if guarded:
            loser.delete()

    monkeypatch.setattr(EnteredBlock, "guard", losing)
    async with raising(LockLost), loser.lock():
        pytest.fail("the block must not be entered")
    await undisturbed()


# A cancellation by others


@pytest.mark.parametrize("pauses", range(5))
@pytest.mark.parametrize("elsewhere_first", [True, False])
async def test_another_cancellation_is_never_swallowed(loser: LockLoser, elsewhere_first: bool, pauses: int) -> None:
    async def work(inside: asyncio.Event) -> None:
        async with loser.lock():
            inside.set()
            try:
                await asyncio.sleep(60.0)
            finally:
                for _ in range(10):
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        pass  # clean-up goes on

    task = asyncio.create_task(work(inside := asyncio.Event()))
    await inside.wait()
    steps: list[Callable[[], object]] = [loser.delete, task.cancel]
    if elsewhere_first:
        steps.reverse()
    steps[0]()
    for _ in range(pauses):
        await asyncio.sleep(0)
    assert not task.done()
    steps[1]()
    await ended(task)
    assert task.cancelled()


async def test_a_cancellation_that_came_before_the_block_is_not_ours(loser: LockLoser) -> None:
    cleaned_up = []

    async def work() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            async with raising(LockLost), loser.lock():  # it cleans up under a lock, and that is lost
                loser.delete()
                await asyncio.sleep(60.0)
            cleaned_up.append(cancelling())
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await ended(task)
    assert task.cancelled()
    assert cleaned_up == [1]


# In combination


@pytest.mark.parametrize("lock_outside", [True, False])
async def test_a_time_limit_and_a_loss_at_once_end_with_the_outer_one(loser: LockLoser, lock_outside: bool) -> None:
    async with raising(LockLost if lock_outside else TimeoutError), AsyncExitStack() as stack:
        limit = asyncio.timeout(60.0)
        managers: list[AbstractAsyncContextManager[object]] = [loser.lock(), limit]
        for manager in managers if lock_outside else managers[::-1]:
            await stack.enter_async_context(manager)
        loser.delete()
        limit.reschedule(0.0)
        await asyncio.sleep(60.0)
    await undisturbed()


async def test_a_member_of_a_task_group_fails_with_the_loss(loser: LockLoser) -> None:
    async def hold(inside: asyncio.Event) -> None:
        async with loser.lock():
            inside.set()
            await asyncio.sleep(60.0)

    async with raising(ExceptionGroup) as caught, asyncio.TaskGroup() as group:
        group.create_task(hold(inside := asyncio.Event()))
        await inside.wait()
        loser.delete()
    assert caught.group_contains(LockLost, match="key gone")


# One object that serves many


class Worker:
    """A task inside a block of a lock, until it is asked to leave."""

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


async def test_blocks_that_are_never_left_are_forgotten(loser: LockLoser) -> None:
    lock = loser.lock()

    async def enter_only() -> None:
        await lock.__aenter__()
        await lock.release()

    for _ in range(5):
        await asyncio.create_task(enter_only())
    async with lock:
        assert len(lock._blocks or ()) == 1


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
