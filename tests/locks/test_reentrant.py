"""The reentrant lock: counted by owner and name, released as often as acquired, and honest about a loss."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.callers import Caller
from tests.support.lock_types import NAME
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LockServerError,
    LossReason,
)

pytestmark = pytest.mark.servers("real")


def new(caller: Caller, name: str | bytes = NAME, **terms: Any) -> Any:
    return caller.locks.reentrant_lock(name, **terms)


# Once more


def test_it_is_held_until_it_was_released_as_often_as_it_was_acquired(backend: Backend, me: Caller) -> None:
    first, second = new(me), new(me, NAME.encode())  # two objects of one name are one lock of their owner
    assert first.count == 0
    for times, lock in enumerate((first, first, second), 1):
        assert lock.acquire() is True
        assert (first.count, second.count) == (times, times)
    assert first.token == second.token
    assert [first.release(), first.release()] == [False, False]
    assert first.is_held
    assert backend.view.exists(NAME)
    assert second.release() is True
    assert (first.count, first.is_held, second.is_held) == (0, False, False)
    assert not backend.view.exists(NAME)
    with pytest.raises(LockNotHeld, match=NAME):
        first.release()
    assert first.count == 0


def test_an_object_that_is_dropped_takes_nothing_with_it(backend: Backend, me: Caller) -> None:
    new(me).acquire()
    lock = new(me)
    assert lock.is_held
    assert lock.count == 1
    assert lock.release() is True
    assert not backend.view.exists(NAME)


def test_each_lease_has_a_field_of_its_own_and_the_count_is_not_kept_there(
    backend: Backend, context: LockContext
) -> None:
    lock, fields = context.reentrant_lock(NAME), set()
    for _ in range(3):
        with lock, lock:
            [(field, count)] = backend.view.hgetall(NAME).items()
            assert count == b"1"
            assert field == lock.token
            assert field.endswith(b":%d" % threading.get_ident())
            fields.add(field)
    assert len(fields) == 3


def test_one_without_a_fence_is_not_acquired_again_with_one(me: Caller) -> None:
    with new(me) as lock:
        assert lock.fence is None
        with pytest.raises(LockAlreadyHeld, match="without a fence"):
            new(me, fencing=True).acquire()
        assert lock.count == 1


# A loss


@pytest.mark.parametrize("times", [1, 3])
def test_after_a_loss_every_release_says_so_and_then_it_can_be_had_again(
    backend: Backend, me: Caller, times: int
) -> None:
    losses = Losses()
    lock = new(me, timeout=30.0, renew_every=0.02, on_lost=losses)
    for _ in range(times):
        assert lock.acquire()
    backend.view.delete(NAME)
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S)
    assert not lock.is_held
    for left in range(times, 0, -1):
        assert lock.count == left
        for once_more in (lock, new(me)):
            with pytest.raises(LockLost) as caught:
                once_more.acquire(blocking=False)
            assert caught.value.reason is LossReason.KEY_GONE
        with pytest.raises(LockLost):
            lock.release()
    assert lock.count == 0
    with pytest.raises((LockNotHeld, LockLost)):
        lock.release()
    assert lock.acquire(blocking=False)
    assert (lock.count, lock.is_held, lock.lost) == (1, True, None)
    assert lock.release() is True
    eventually(losses.all_told, LONG_S)
    assert [event.reason for event in losses.events] == [LossReason.KEY_GONE]


def test_a_name_that_holds_data_is_refused_and_left_alone(backend: Backend, context: LockContext) -> None:
    backend.view.rpush(NAME, "something", "else")
    lock = context.reentrant_lock(NAME)
    with pytest.raises(LockServerError, match="list"):
        lock.acquire(blocking=False)
    with pytest.raises(LockServerError, match="list"), context.reentrant_lock(NAME, blocking_timeout=LONG_S):
        pytest.fail("the block must not run")
    assert backend.view.lrange(NAME, 0, -1) == [b"something", b"else"]
    assert lock.count == 0
    assert lock.locked()


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


@pytest.mark.parametrize("times", [1, 2])
def test_a_lock_whose_owner_has_ended_is_renewed_no_more(
    backend: Backend, me: Caller, another: Caller, times: int
) -> None:
    losses = Losses()
    lock = new(another, timeout=0.6, renew_every=0.05, on_lost=losses)
    for _ in range(times):
        lock.acquire()
    with pytest.warns(ResourceWarning, match="was abandoned"):
        another.end()
        eventually(losses.all_told, LONG_S)
    assert [event.reason for event in losses.events] == [LossReason.ABANDONED]
    mine = me.sees(lock)
    assert not mine.is_held
    with pytest.raises(LockNotHeld):
        mine.release()
    assert mine.acquire(blocking_timeout=LONG_S), "which its timeout makes possible"
    assert mine.release() is True
    assert not backend.view.exists(NAME)
