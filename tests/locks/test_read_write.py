"""The read-write lock: readers together, writers alone, and from writing to reading without a gap."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.callers import Caller
from tests.support.lock_types import NAME, zmembers
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LossReason,
    UpgradeRefused,
    WrongThread,
)

pytestmark = pytest.mark.servers("real")


def members(backend: Backend) -> list[bytes]:
    """What kinds of members the sorted set has."""
    return sorted(member[:1] for member in zmembers(backend))


# Once more


def test_who_reads_cannot_write_and_is_told_why(backend: Backend, me: Caller) -> None:
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


# From writing to reading


@pytest.mark.parametrize("way", ["downgrade", "release"])
def test_a_writer_may_go_on_reading_with_others(
    backend: Backend, me: Caller, another: Caller, other: LockContext, way: str
) -> None:
    lock = me.locks.rw_lock(NAME)
    writer = lock.write()
    writer.acquire()
    if way == "downgrade":
        reader = writer.downgrade()
    else:
        reader = lock.read()
        writer.acquire()
        reader.acquire()
        reader.acquire()
        assert writer.release() is False
        assert members(backend) == [b"w"]
        assert writer.release() is True
    assert members(backend) == [b"r"]
    count = 1 if way == "downgrade" else 2
    assert (reader.count, writer.count) == (count, 0)
    assert (reader.is_held, writer.is_held) == (True, False)
    assert (another.sees(reader).is_held, another.sees(writer).is_held) == (True, False)
    assert reader.owned()
    with pytest.raises(WrongThread):
        another.sees(reader).release()
    with other.rw_lock(NAME).read():
        assert members(backend) == [b"r"] * 2
    for change in (writer.release, writer.downgrade):
        with pytest.raises(LockNotHeld):
            change()
    with pytest.raises(UpgradeRefused):
        writer.acquire()
    assert [reader.release() for _ in range(count)] == [False] * (count - 1) + [True]
    assert me.context.stats().held == 0
    assert not backend.view.exists(NAME)


def test_a_downgrade_of_what_was_lost_says_so(backend: Backend, me: Caller) -> None:
    losses = Losses()
    lock = me.locks.rw_lock(NAME, on_lost=losses)
    writer = lock.write()
    writer.acquire()
    backend.view.delete(NAME)
    with pytest.raises(LockLost) as caught:
        writer.downgrade()
    assert caught.value.reason is LossReason.KEY_GONE
    assert me.context.stats().held == 0
    assert not backend.view.exists(NAME)
    with pytest.raises(LockLost):
        writer.release()
    eventually(losses.all_told, LONG_S)
    assert [event.reason for event in losses.events] == [LossReason.KEY_GONE]
    assert lock.write().acquire(blocking=False)
