"""The reentrant lock: counted by owner and name, released as often as acquired, and honest about a loss."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.callers import Caller, ThreadCaller
from tests.support.event_loops import Run
from tests.support.lock_types import NAME
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockContext, LockLost, LossReason

pytestmark = pytest.mark.servers("real")


def new(caller: Caller, name: str | bytes = NAME, **terms: Any) -> Any:
    return caller.locks.reentrant_lock(name, **terms)


# Once more


def test_one_without_a_fence_is_not_acquired_again_with_one(me: Caller) -> None:
    with new(me) as lock:
        assert lock.fence is None
        with pytest.raises(LockAlreadyHeld, match="without a fence"):
            new(me, fencing=True).acquire()
        assert lock.count == 1


# Waiting


@pytest.mark.parametrize("crowded", [False, True], ids=["one holds it", "one holds it and one waits"])
def test_two_reentrant_locks_whose_waiters_are_woken_on_one_channel_are_still_two(
    context: LockContext, crowded: bool
) -> None:
    """Redisson's channel for `x` is the one for `{x}`, too: that may cost a poll, but no lock."""

    def new(name: str) -> Any:
        return ThreadCaller(context).locks.reentrant_lock(name, blocking_timeout=LONG_S)

    plain, plain_behind, tagged, tagged_behind = new("x"), new("x"), new("{x}"), new("{x}")
    plain.acquire()
    if crowded:
        waiting = plain_behind.acquire.begin()
    assert tagged.acquire(blocking_timeout=LONG_S / 2), "it is free"
    assert not tagged_behind.acquire(blocking=False)
    second = tagged_behind.acquire.begin()
    assert tagged.release()
    assert second.result(LONG_S)
    plain.release()
    if crowded:
        assert waiting.result(LONG_S)
        plain_behind.release()


# A loss


def test_a_lock_whose_key_becomes_something_else_is_not_owned(backend: Backend, context: LockContext) -> None:
    lock = context.reentrant_lock(NAME)
    lock.acquire()
    backend.view.delete(NAME)
    backend.view.set(NAME, "something else")
    assert not lock.owned()
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason is LossReason.TAKEN


# The end


@pytest.mark.parametrize("times", [1, 2])
def test_it_is_not_released_in_bulk_and_neither_is_what_comes_with_it(
    backend: Backend, context: LockContext, times: int
) -> None:
    lock, plain = context.reentrant_lock(NAME), context.lock("plain")
    for _ in range(times):
        lock.acquire()
    plain.acquire()
    for locks in ([lock], [plain, lock], [lock, plain]):
        with pytest.raises(TypeError, match="as often as it was acquired"):
            context.release_many(locks)
    assert (lock.count, lock.is_held, plain.is_held) == (times, True, True)
    assert backend.view.dbsize() == 2


# Tasks


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


def test_what_is_held_of_a_closed_context_does_not_keep_that(backend: Backend, context: LockContext) -> None:
    with LockContext(backend.client(), close_timeout=0.2) as closed:
        closed.reentrant_lock(NAME, 0.2).acquire()
        engine = weakref.ref(closed._engine)
    del closed
    with context.reentrant_lock(NAME):
        eventually(lambda: gc.collect() >= 0 and engine() is None, LONG_S)
