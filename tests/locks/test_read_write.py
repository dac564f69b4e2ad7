"""The read-write lock: readers together, writers alone, turns, and from writing to reading without a gap."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.callers import Caller, NewCaller
from tests.support.lock_types import NAME, deaf, zmembers
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LockServerError,
    LossReason,
    UpgradeRefused,
    WrongThread,
)

pytestmark = pytest.mark.servers("real")


def members(backend: Backend) -> list[bytes]:
    """What kinds of members the sorted set has."""
    return sorted(member[:1] for member in zmembers(backend))


# Who may hold it together


@pytest.mark.parametrize("half", ["read", "write"])
def test_what_finds_data_under_its_name_is_refused_and_says_that_it_is_locked(
    backend: Backend, context: LockContext, half: str
) -> None:
    backend.view.set(NAME, "something else")
    lock = getattr(context.rw_lock(NAME), half)()
    with pytest.raises(LockServerError, match="string"):
        lock.acquire(blocking=False)
    with pytest.raises(LockServerError, match="string"):
        lock.acquire(blocking_timeout=LONG_S)
    assert lock.count == 0
    assert backend.view.get(NAME) == b"something else"
    assert lock.locked()


@pytest.mark.parametrize("half", ["read", "write"])
def test_one_whose_key_becomes_something_else_is_lost_and_not_owned(
    backend: Backend, context: LockContext, half: str
) -> None:
    lock = getattr(context.rw_lock(NAME), half)()
    lock.acquire()
    backend.view.set(NAME, "something else")
    assert not lock.owned()
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason is LossReason.TAKEN
    assert backend.view.get(NAME) == b"something else"


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


def test_another_thread_or_task_may_look_but_not_touch(api: str, me: Caller, another: Caller) -> None:
    lock = me.locks.rw_lock(NAME)
    for half in (lock.read(), lock.write()):
        with half:
            theirs = another.sees(half)
            assert theirs.is_held
            for change in ("release", "reacquire", *(["downgrade"] if hasattr(half, "downgrade") else [])):
                with pytest.raises(WrongThread, match=f"another {api[:-1]}"):
                    getattr(theirs, change)()
            assert half.is_held


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


@pytest.mark.parametrize("half", ["read", "write"])
def test_readers_that_wait_are_woken_by_a_downgrade_and_writers_by_the_release_after_it(
    backend: Backend, me: Caller, new_caller: NewCaller, half: str
) -> None:
    waiter, _ = deaf(backend)
    writer = me.locks.rw_lock(NAME).write()
    writer.acquire()
    behind = getattr(new_caller(waiter).locks.rw_lock(NAME, blocking_timeout=LONG_S), half)()
    waiting = behind.acquire.begin()
    eventually(lambda: {"read": b"q", "write": b"i"}[half] in members(backend), LONG_S, "it has left word")
    reader = writer.downgrade()
    assert reader.owned()
    if half == "write":
        assert not waiting.done()
        assert members(backend) == [b"i", b"r"]
        reader.release()
    assert waiting.result(LONG_S)
    assert behind.release()


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


def test_neither_half_is_released_in_bulk(backend: Backend, context: LockContext) -> None:
    lock = context.rw_lock(NAME)
    with lock.write() as writer, lock.read() as reader:
        for half in (writer, reader):
            with pytest.raises(TypeError, match="as often as it was acquired"):
                context.release_many([half])
        assert (writer.count, reader.count) == (1, 1)
        assert members(backend) == [b"w"]


# Losses


def test_a_crashed_reader_keeps_writers_out_for_no_longer_than_its_own_timeout(
    backend: Backend, context: LockContext
) -> None:
    crashed, _ = backend.stepped_context()  # whose clock stands still: it renews nothing
    long, short = context.rw_lock(NAME, timeout=30.0).read(), crashed.rw_lock(NAME, timeout=0.4).read()
    assert not short.locked()  # its connection stands
    long.acquire()
    short.acquire()
    long.release()
    assert backend.view.pttl(NAME) <= 400
    with context.rw_lock(NAME, blocking_timeout=LONG_S).write():
        pass  # though the other's timeout of 30 s is far from over
