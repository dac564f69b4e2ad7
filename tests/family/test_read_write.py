"""The read-write lock, for threads: readers together, writers alone, turns, and from writing to reading without a gap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.family.support import NAME, NewThread, deaf, zmembers
from tests.redis.support import LONG_S, Backend, Losses, in_thread
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

TURN_S = 0.1
"""For how long the turn is the readers' who have waited while somebody wrote."""


def members(backend: Backend) -> list[bytes]:
    """What kinds of members the sorted set has."""
    return sorted(member[:1] for member in zmembers(backend))


def eventually_waits(backend: Backend) -> None:
    """Return when a writer has left word that it waits."""
    eventually(lambda: b"i" in members(backend), LONG_S, "a writer has left word")


# Who may hold it together


def test_readers_hold_it_together_and_keep_writers_out(
    backend: Backend, context: LockContext, other: LockContext, new_thread: NewThread
) -> None:
    there = new_thread()
    with context.rw_lock(NAME).read() as first, other.rw_lock(NAME).read() as second:
        third = context.rw_lock(NAME).read()
        assert there.do(lambda: third.acquire(blocking=False))
        assert len({first.token, second.token, there.do(lambda: third.token)}) == 3
        assert members(backend) == [b"r"] * 3
        assert not backend.context().rw_lock(NAME).write().acquire(blocking=False)
        assert not there.do(lambda: other.rw_lock(NAME).write().acquire(blocking=False))
        assert there.do(third.release) is True
    assert other.rw_lock(NAME).write().acquire(blocking=False)


def test_a_writer_keeps_everybody_out(backend: Backend, context: LockContext, other: LockContext) -> None:
    with context.rw_lock(NAME).write() as lock:
        assert members(backend) == [b"w"]
        assert not other.rw_lock(NAME).write().acquire(blocking=False)
        assert not other.rw_lock(NAME).read().acquire(blocking=False)
        assert not in_thread(lambda: context.rw_lock(NAME).read().acquire(blocking=False))
        assert lock.is_held
    assert not backend.view.exists(NAME)


def test_each_half_says_what_the_server_knows_of_it(context: LockContext, other: LockContext) -> None:
    reader, writer = other.rw_lock(NAME).read(), other.rw_lock(NAME).write()
    assert (reader.locked(), writer.locked()) == (False, False)
    with context.rw_lock(NAME).read() as lock:
        assert (reader.locked(), writer.locked()) == (True, False)
        assert lock.owned()
    assert not lock.owned()
    with context.rw_lock(NAME).write() as writing:
        assert (reader.locked(), writer.locked()) == (False, True)
        assert writing.owned()
    assert not writing.owned()


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


@pytest.mark.parametrize("half", ["read", "write"])
def test_each_half_can_be_acquired_again(backend: Backend, context: LockContext, half: str) -> None:
    lock, another = getattr(context.rw_lock(NAME), half)(), getattr(context.rw_lock(NAME), half)()
    assert lock.acquire()
    assert another.acquire()
    assert (lock.count, another.count) == (2, 2)
    assert len(members(backend)) == 1
    assert lock.release() is False
    assert another.release() is True
    assert not backend.view.exists(NAME)
    with pytest.raises(LockNotHeld):
        lock.release()


def test_who_reads_may_read_again_while_a_writer_waits(
    backend: Backend, context: LockContext, other: LockContext, new_thread: NewThread
) -> None:
    there = new_thread()
    reader, writer = context.rw_lock(NAME).read(), other.rw_lock(NAME, blocking_timeout=LONG_S).write()
    reader.acquire()
    waiting = there.begin(other, writer.acquire)
    eventually_waits(backend)
    assert reader.acquire(blocking=False)
    assert not backend.context().rw_lock(NAME).read().acquire(blocking=False), "others wait behind the writer"
    assert (reader.release(), reader.release()) == (False, True)
    assert waiting.result(LONG_S)
    assert there.do(writer.release)


def test_who_reads_cannot_write_and_is_told_why(backend: Backend, context: LockContext) -> None:
    lock = context.rw_lock(NAME)
    with lock.read() as reader:
        before = members(backend)
        attempts: list[Callable[[], object]] = [
            lock.write().acquire,
            lambda: context.rw_lock(NAME).write().acquire(blocking=False),
        ]
        for attempt in attempts:
            with pytest.raises(UpgradeRefused, match=r"reading.*Release it first") as caught:
                attempt()
            assert isinstance(caught.value, LockAlreadyHeld)
            assert caught.value.lock_name == NAME
        with pytest.raises(UpgradeRefused), lock.write():
            pytest.fail("the block must not run")
        assert members(backend) == before
        assert reader.is_held
        assert reader.count == 1
    with lock.write():
        pass


def test_who_writes_may_read_and_is_still_alone(backend: Backend, context: LockContext, other: LockContext) -> None:
    lock = context.rw_lock(NAME)
    with lock.write() as writer:
        with lock.read() as reader:
            assert (writer.count, reader.count) == (1, 1)
            assert reader.is_held
            assert members(backend) == [b"w"]
            assert not other.rw_lock(NAME).read().acquire(blocking=False)
        assert writer.is_held
        assert reader.count == 0
        assert not other.rw_lock(NAME).read().acquire(blocking=False)
    assert not backend.view.exists(NAME)


def test_a_reading_half_that_was_released_inside_a_write_is_not_held(context: LockContext) -> None:
    lock = context.rw_lock(NAME)
    with lock.write(), lock.read() as reader:
        reader.release()
        assert reader.count == 0
        assert not reader.is_held
        with pytest.raises(LockNotHeld):
            reader.release()
        reader.acquire()


def test_another_thread_may_look_but_not_touch(context: LockContext) -> None:
    for half in (context.rw_lock(NAME).read(), context.rw_lock(NAME).write()):
        with half as lock:
            assert in_thread(lambda lock=lock: lock.is_held)  # type: ignore[misc]
            for change in (lock.release, lock.reacquire):
                with pytest.raises(WrongThread, match="another thread"):
                    in_thread(change)
            assert lock.is_held


def test_fences_are_drawn_by_writers_and_grow(context: LockContext, other: LockContext) -> None:
    fences: list[int] = []
    for face in (context, other, context):
        lock = face.rw_lock(NAME, fencing=True)
        with lock.write() as writer:
            assert writer.fence is not None
            fences.append(writer.fence)
            with lock.write() as again, lock.read() as inside:
                assert again.fence == inside.fence == writer.fence
        with lock.read() as reader:
            assert reader.fence is None
    assert fences == sorted(set(fences))


# From writing to reading


def test_a_downgraded_writer_reads_with_others(backend: Backend, context: LockContext, other: LockContext) -> None:
    writer = context.rw_lock(NAME).write()
    writer.acquire()
    reader = writer.downgrade()
    assert members(backend) == [b"r"]
    assert (reader.count, writer.count) == (1, 0)
    assert (reader.is_held, writer.is_held) == (True, False)
    assert reader.owned()
    with other.rw_lock(NAME).read():
        assert members(backend) == [b"r"] * 2
    for change in (writer.release, writer.downgrade):
        with pytest.raises(LockNotHeld):
            change()
    with pytest.raises(UpgradeRefused):
        writer.acquire()
    assert reader.release() is True
    assert context.stats().held == 0
    assert not backend.view.exists(NAME)


def test_a_writer_that_reads_goes_on_reading_when_it_has_released_it_for_writing(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    lock = context.rw_lock(NAME)
    writer, reader = lock.write(), lock.read()
    writer.acquire()
    writer.acquire()
    reader.acquire()
    reader.acquire()
    assert writer.release() is False
    assert members(backend) == [b"w"]
    assert writer.release() is True
    assert members(backend) == [b"r"]
    assert (writer.is_held, reader.is_held, reader.count) == (False, True, 2)
    with other.rw_lock(NAME).read():
        assert reader.release() is False
        assert reader.release() is True
    assert not backend.view.exists(NAME)


def test_other_threads_see_that_a_downgraded_lock_is_held(context: LockContext) -> None:
    lock = context.rw_lock(NAME)
    writer = lock.write()
    writer.acquire()
    reader = writer.downgrade()
    assert in_thread(lambda: reader.is_held)
    with pytest.raises(WrongThread):
        in_thread(reader.release)
    reader.release()
    with lock.write() as writer, lock.read() as reader:
        writer.release()
        assert in_thread(lambda: reader.is_held)
        assert not in_thread(lambda: writer.is_held)
        reader.release()
        writer.acquire()
        reader.acquire()


@pytest.mark.parametrize("way", ["downgrade", "release"])
def test_no_writer_gets_in_between_writing_and_reading(
    backend: Backend, context: LockContext, other: LockContext, new_thread: NewThread, way: str
) -> None:
    lock, there = context.rw_lock(NAME), new_thread()
    reading, over = threading.Event(), threading.Event()
    intrusions: list[bool] = []
    tries = 0

    def intrude() -> None:
        nonlocal tries
        intruder = other.rw_lock(NAME).write()
        while not over.is_set():
            mine = reading.is_set()  # asked before: what begins while it is held must not be granted until it ends
            if intruder.acquire(blocking=False):
                if mine and reading.is_set():
                    intrusions.append(True)
                intruder.release()
            tries += 1

    intruding = there.submit(intrude)
    for _ in range(30):
        writer = lock.write()
        assert writer.acquire(blocking_timeout=LONG_S)
        reading.set()
        if way == "downgrade":
            reader = writer.downgrade()
        else:
            reader = lock.read()
            reader.acquire()
            writer.release()
        assert reader.owned()
        before = tries
        eventually(lambda before=before: tries >= before + 3)  # type: ignore[misc]
        assert reader.is_held
        reading.clear()
        reader.release()
    over.set()
    intruding.result(LONG_S)
    assert intrusions == []


def test_a_writer_that_waits_gets_its_turn_after_the_downgraded_reader_and_not_before(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    waiter, _ = deaf(backend)
    there, writer = new_thread(), context.rw_lock(NAME).write()
    writer.acquire()
    another = waiter.rw_lock(NAME, blocking_timeout=LONG_S).write()
    waiting = there.begin(waiter, another.acquire)
    eventually_waits(backend)
    reader = writer.downgrade()
    assert reader.owned()
    assert not waiting.done()
    assert members(backend) == [b"i", b"r"]
    reader.release()
    assert waiting.result(LONG_S)
    assert there.do(another.release)


def test_readers_that_wait_are_woken_by_a_downgrade(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    waiter, _ = deaf(backend)
    there, writer = new_thread(), context.rw_lock(NAME).write()
    writer.acquire()
    another = waiter.rw_lock(NAME, blocking_timeout=LONG_S).read()
    waiting = there.begin(waiter, another.acquire)
    eventually(lambda: b"q" in members(backend))
    reader = writer.downgrade()
    assert waiting.result(LONG_S)
    assert reader.owned()
    assert there.do(another.release)
    reader.release()


def test_only_who_writes_once_can_downgrade(context: LockContext) -> None:
    lock = context.rw_lock(NAME)
    writer = lock.write()
    with pytest.raises(LockNotHeld):
        writer.downgrade()
    writer.acquire()
    writer.acquire()
    with pytest.raises(LockAlreadyHeld, match="2 times"):
        writer.downgrade()
    with pytest.raises(WrongThread):
        in_thread(writer.downgrade)
    assert (writer.count, writer.is_held) == (2, True)
    writer.release()
    reader = writer.downgrade()
    assert reader.release() is True


def test_a_downgrade_of_what_was_lost_says_so(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    lock = context.rw_lock(NAME, on_lost=losses)
    writer = lock.write()
    writer.acquire()
    backend.view.delete(NAME)
    with pytest.raises(LockLost) as caught:
        writer.downgrade()
    assert caught.value.reason is LossReason.KEY_GONE
    assert not backend.view.exists(NAME)
    with pytest.raises(LockLost):
        writer.release()
    assert [event.reason for event in losses.all_told()] == [LossReason.KEY_GONE]
    assert lock.write().acquire(blocking=False)


def test_a_release_for_writing_that_finds_it_lost_leaves_nothing_believed(
    backend: Backend, context: LockContext
) -> None:
    lock = context.rw_lock(NAME)
    writer, reader = lock.write(), lock.read()
    writer.acquire()
    reader.acquire()
    backend.view.delete(NAME)
    with pytest.raises(LockLost):
        writer.release()
    assert (writer.count, reader.count) == (0, 1)
    assert not reader.is_held
    with pytest.raises(LockLost):
        reader.acquire()
    with pytest.raises(LockLost):
        reader.release()
    assert lock.read().acquire(blocking=False)


def test_a_downgraded_lock_is_renewed_and_told_of_a_loss(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    losses = Losses()
    writer = context.rw_lock(NAME, timeout=30.0, on_lost=losses).write()
    writer.acquire()
    clock.advance(15.0)
    reader = writer.downgrade()
    clock.advance(25.0)
    assert reader.is_held
    assert reader.renewals == 2
    assert context.stats().held == 1
    assert losses.all_told() == []
    backend.view.delete(NAME)
    clock.advance(15.0)
    assert reader.lost is LossReason.KEY_GONE
    assert [event.reason for event in losses.all_told()] == [LossReason.KEY_GONE]


def test_a_hold_limit_counts_from_the_first_grant_also_for_who_downgrades(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    writer = context.rw_lock(NAME, timeout=30.0, max_hold=20.0).write()
    writer.acquire()
    clock.advance(15.0)
    reader = writer.downgrade()
    assert reader.remaining() <= 5.0
    clock.advance(6.0)
    assert reader.lost is LossReason.HOLD_LIMIT


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
    long, short = context.rw_lock(NAME, timeout=30.0).read(), crashed.rw_lock(NAME, timeout=1.0).read()
    assert not short.locked()  # its connection stands
    long.acquire()
    short.acquire()
    long.release()
    assert 0 < backend.view.pttl(NAME) <= 1_000
    began = time.monotonic()
    with context.rw_lock(NAME, blocking_timeout=LONG_S).write():
        assert time.monotonic() - began < 1.0 + 2.0


def test_one_reader_that_is_lost_leaves_the_others_alone(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    first, second = context.rw_lock(NAME).read(), other.rw_lock(NAME).read()
    first.acquire()
    second.acquire()
    assert first.token is not None
    backend.view.zrem(NAME, first.token)
    with pytest.raises(LockLost) as caught:
        first.reacquire()
    assert caught.value.reason is LossReason.KEY_GONE
    assert second.reacquire()
    assert second.is_held
    with pytest.raises(LockLost):
        first.release()
    assert second.release() is True


def test_an_extension_is_for_one_holder_and_the_key_outlives_all(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    first, second = context.rw_lock(NAME, timeout=10.0).read(), other.rw_lock(NAME, timeout=10.0).read()
    first.acquire()
    second.acquire()
    assert first.extend(50.0) is True
    assert first.remaining() > 55.0
    assert second.remaining() < 10.0
    assert 55_000 < backend.view.pttl(NAME) <= 60_000
    assert first.extend(5.0, replace_ttl=True)
    assert first.remaining() < 5.0
    assert backend.view.pttl(NAME) > 10_000, "shortening one never shortens the key"


# Turns


def test_readers_and_writers_take_turns(backend: Backend, new_thread: NewThread) -> None:
    """While a writer holds it, another writer and a reader wait. The readers come first, then the writer."""
    context = backend.context()
    order: list[str] = []
    came_in_at: dict[str, float] = {}

    def take_turn(what: str, lock: Callable[[], object]) -> None:
        with lock():  # type: ignore[attr-defined]
            came_in_at[what] = time.monotonic()
            order.append(what)

    first = context.rw_lock(NAME).write()
    first.acquire()
    second, third = backend.context(), backend.context()
    lock = second.rw_lock(NAME, blocking_timeout=LONG_S)
    writing = new_thread().begin(second, lambda: take_turn("writer", lock.write))
    eventually_waits(backend)
    behind = third.rw_lock(NAME, blocking_timeout=LONG_S)
    reading = new_thread().begin(third, lambda: take_turn("reader", behind.read))
    eventually(lambda: b"q" in members(backend))
    released_at = time.monotonic()
    first.release()
    writing.result(LONG_S)
    reading.result(LONG_S)
    # The turn is the readers' for so long: if none was able to run by then, anybody may be the first.
    assert order == ["reader", "writer"] or came_in_at["writer"] - released_at >= TURN_S


def test_neither_side_starves(backend: Backend, new_thread: NewThread) -> None:
    counts = {"read": 0, "write": 0}
    over = threading.Event()
    inside: list[str] = []

    def work(context: LockContext, half: str) -> None:
        lock = getattr(context.rw_lock(NAME, blocking_timeout=LONG_S), half)()
        while not over.is_set():
            with lock:
                inside.append(half)
                assert inside.count("write") == 0 or inside == ["write"], "a writer is alone"
                time.sleep(0.001)  # so that readers overlap, and without turns there were always one
                counts[half] += 1
                inside.remove(half)

    workers = [
        new_thread().submit(lambda half=half: work(backend.context(), half))  # type: ignore[misc]
        for half in ("read", "read", "read", "write", "write")
    ]
    eventually(lambda: min(counts.values()) >= 3 or any(worker.done() for worker in workers), LONG_S)
    over.set()
    for worker in workers:
        worker.result(LONG_S)
    assert min(counts.values()) >= 3
