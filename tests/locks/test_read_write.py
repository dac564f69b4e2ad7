"""The read-write lock: readers together, writers alone, and from writing to reading without a gap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.callers import Caller
from tests.support.lock_types import NAME, zmembers
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockLost, LossReason, UpgradeRefused
from wheel_lock.locks.reentrancy import BaseWriteLock
from wheel_lock.testing import settle

pytestmark = pytest.mark.servers("real")


def members(backend: Backend) -> list[bytes]:
    """What kinds of members the sorted set has."""
    return sorted(member[:1] for member in zmembers(backend))


# Once more


def test_a_reader_cannot_write_and_the_error_says_why(backend: Backend, me: Caller) -> None:
    lock = me.locks.rw_lock(NAME)
    with lock.read() as reader:
        before = members(backend)
        attempts: list[Callable[[], object]] = [
            lock.write().acquire,
            lambda: me.locks.rw_lock(NAME).write().acquire(blocking=False),
            lock.write().__enter__,
        ]
        for attempt in attempts:
            with pytest.raises(UpgradeRefused, match=r"reading.*Release it first") as caught:
                attempt()
            assert isinstance(caught.value, LockAlreadyHeld)
            assert caught.value.lock_name == NAME
        assert members(backend) == before
        assert reader.is_held
        assert reader.count == 1
    with lock.write():
        pass


# An object that two callers use


def test_a_loss_is_raised_although_another_caller_reads_on_through_the_same_object(
    backend: Backend, me: Caller, another: Caller
) -> None:
    writer = me.locks.rw_lock(NAME).write()
    writer.enters()
    backend.view.delete(NAME)
    theirs = another.sees(writer)
    theirs.acquire()
    reader = theirs.downgrade()
    with pytest.raises(LockLost):
        writer.leaves(None, None, None)
    assert writer.count == 0
    assert reader.is_held


def test_a_writer_that_is_lost_as_it_is_to_read_on_is_released_as_any_lost_one(
    backend: Backend, me: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = me.locks.rw_lock(NAME)
    writer, reader = lock.write(), lock.read()
    writer.acquire()
    reader.acquire()

    def keeps_reading(lock: BaseWriteLock) -> bool:
        assert lock._lease is not None
        lock._engine.submit(partial(lock._engine.leases.mark_lost, [lock._lease], LossReason.KEY_GONE))
        settle(me.context.timer)
        return True

    monkeypatch.setattr(BaseWriteLock, "_keeps_reading", property(keeps_reading))
    with pytest.raises(LockLost):
        writer.release()
    with pytest.raises(LockLost):
        reader.release()
    assert (writer.count, reader.count) == (0, 0)


# Limits


@pytest.mark.parametrize("way", ["downgrade", "release"])
def test_the_limits_of_the_outermost_acquire_hold_when_another_object_changes_to_reading(
    backend: Backend, way: str
) -> None:
    context, clock = backend.stepped_context()
    losses, forgotten = Losses(), Losses()
    writer = context.rw_lock(NAME, max_hold=20.0, on_lost=losses).write()
    writer.acquire()
    lock = context.rw_lock(NAME, on_lost=forgotten)
    if way == "downgrade":
        reader = lock.write().downgrade()
    else:
        reader = lock.read()
        reader.acquire()
        assert lock.write().release() is True
    clock.advance(15.0)
    assert reader.is_held
    clock.advance(10.0)
    assert not reader.is_held
    eventually(lambda: reader.lost is LossReason.HOLD_LIMIT, LONG_S)
    eventually(lambda: len(losses.delivered()) == 1, LONG_S)
    assert losses.events[0].reason is LossReason.HOLD_LIMIT
    assert forgotten.delivered() == []
    with pytest.raises(LockLost):
        reader.release()
