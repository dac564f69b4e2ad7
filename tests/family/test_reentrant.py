"""The reentrant lock, for threads: counted by thread and name, released as often as acquired, and honest about a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.family.support import NAME, NewThread, deaf
from tests.redis.support import LONG_S, Backend, Losses, in_thread
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LockServerError,
    LossReason,
    WrongThread,
)
from wheel_lock.sync.primitives import ReentrantLock


def lost(backend: Backend, context: LockContext, times: int = 1, **terms: Any) -> ReentrantLock:
    """A lock that was acquired so many times, and whose key was then deleted, which has been noticed."""
    lock = context.reentrant_lock(NAME, timeout=30.0, renew_every=0.02, **terms)
    for _ in range(times):
        assert lock.acquire()
    backend.view.delete(NAME)
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S)
    return lock


# Once more


def test_it_is_held_until_it_was_released_as_often_as_it_was_acquired(backend: Backend, context: LockContext) -> None:
    lock = context.reentrant_lock(NAME)
    assert lock.count == 0
    for times in (1, 2, 3):
        assert lock.acquire() is True
        assert lock.count == times
    assert lock.release() is False
    assert lock.release() is False
    assert lock.is_held
    assert backend.view.exists(NAME)
    assert lock.release() is True
    assert (lock.count, lock.is_held) == (0, False)
    assert not backend.view.exists(NAME)
    with pytest.raises(LockNotHeld, match=NAME):
        lock.release()
    assert lock.count == 0


def test_with_statements_nest(backend: Backend, context: LockContext) -> None:
    def inner() -> int:
        with context.reentrant_lock(NAME) as again:
            return again.count

    with context.reentrant_lock(NAME) as lock:
        assert inner() == 2
        with lock, lock:
            assert lock.count == 3
        assert lock.count == 1
        assert lock.is_held
    assert not backend.view.exists(NAME)


def test_two_objects_of_one_name_are_one_lock_of_their_thread(context: LockContext) -> None:
    first, second = context.reentrant_lock(NAME), context.reentrant_lock(NAME.encode())
    first.acquire()
    second.acquire()
    assert (first.count, second.count) == (2, 2)
    assert first.token == second.token
    assert first.release() is False
    assert first.is_held
    assert second.release() is True
    assert (first.is_held, second.is_held) == (False, False)


def test_an_object_that_is_dropped_takes_nothing_with_it(backend: Backend, context: LockContext) -> None:
    def acquire_and_forget() -> None:
        context.reentrant_lock(NAME).acquire()

    acquire_and_forget()
    lock = context.reentrant_lock(NAME)
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


def test_a_fence_stays_the_same_while_it_is_held_and_grows_with_each_grant(
    context: LockContext, other: LockContext
) -> None:
    fences = []
    for face in (context, other, context):
        lock = face.reentrant_lock(NAME, fencing=True)
        with lock:
            fence = lock.fence
            with lock, face.reentrant_lock(NAME, fencing=True) as another:
                assert lock.fence == another.fence == fence
            assert lock.fence == fence
            assert fence is not None
            fences.append(fence)
    assert fences == sorted(set(fences))


def test_without_fencing_there_is_no_fence(context: LockContext) -> None:
    with context.reentrant_lock(NAME) as lock:
        assert lock.fence is None


def test_one_without_a_fence_is_not_acquired_again_with_one(context: LockContext) -> None:
    with context.reentrant_lock(NAME) as lock:
        with pytest.raises(LockAlreadyHeld, match="without a fence"):
            context.reentrant_lock(NAME, fencing=True).acquire()
        assert lock.count == 1


def test_what_changes_its_time_to_live_counts_for_all_of_it(backend: Backend, context: LockContext) -> None:
    lock = context.reentrant_lock(NAME, timeout=30.0)
    with lock, lock:
        assert lock.extend(30.0) is True
        assert 50_000 < backend.view.pttl(NAME) <= 60_000
        assert context.reentrant_lock(NAME).reacquire() is True
        assert backend.view.pttl(NAME) <= 30_000
        assert lock.remaining() <= 30.0
        assert lock.owned()
        assert lock.locked()
        assert lock.count == 2


def test_it_is_renewed_as_one_lease(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    lock = context.reentrant_lock(NAME, timeout=30.0)
    with lock, lock:
        clock.advance(25.0)
        assert lock.renewals == 2
        assert lock.is_held
        assert context.stats().held == 1


# Who else


def test_another_thread_and_another_context_are_kept_out(
    context: LockContext, other: LockContext, new_thread: NewThread
) -> None:
    lock, there = context.reentrant_lock(NAME), new_thread()
    with lock:
        assert not there.do(lambda: lock.acquire(blocking=False))
        assert not there.do(lambda: context.reentrant_lock(NAME, blocking=False).acquire())
        assert not other.reentrant_lock(NAME).acquire(blocking=False)
    assert there.do(lambda: lock.acquire(blocking=False))
    assert not lock.acquire(blocking=False)
    assert there.do(lock.release) is True


def test_another_thread_may_look_but_not_touch(context: LockContext) -> None:
    with context.reentrant_lock(NAME) as lock:
        assert in_thread(lambda: (lock.is_held, lock.count, lock.lost)) == (True, 0, None)
        changes: list[Callable[[], object]] = [lock.release, lock.reacquire, lambda: lock.extend(1.0)]
        for change in changes:
            with pytest.raises(WrongThread, match="another thread"):
                in_thread(change)
        assert lock.count == 1
        assert lock.is_held


def test_each_thread_counts_for_itself(context: LockContext, new_thread: NewThread) -> None:
    lock, there = context.reentrant_lock(NAME), new_thread()
    there.do(lambda: (lock.acquire(), lock.acquire()))
    assert lock.count == 0
    with pytest.raises(WrongThread):
        lock.release()
    assert there.do(lambda: lock.count) == 2
    assert [there.do(lock.release), there.do(lock.release)] == [False, True]
    with lock:
        assert there.do(lambda: lock.count) == 0


def test_a_waiter_gets_it_at_the_last_release_and_not_before(backend: Backend, new_thread: NewThread) -> None:
    context, _ = deaf(backend)
    there, lock = new_thread(), context.reentrant_lock(NAME)
    lock.acquire()
    lock.acquire()
    waiting = there.begin(context, context.reentrant_lock(NAME, blocking_timeout=LONG_S).acquire)
    lock.release()
    assert context.stats().waiting == 1
    assert not waiting.done()
    lock.release()
    assert waiting.result(LONG_S) is True
    assert there.do(context.reentrant_lock(NAME).release)


def test_it_excludes_the_plain_lock_of_its_name_and_is_excluded_by_it(context: LockContext, other: LockContext) -> None:
    with context.reentrant_lock(NAME):
        assert not other.lock(NAME).acquire(blocking=False)
    with context.lock(NAME):
        assert not other.reentrant_lock(NAME).acquire(blocking=False)
        assert not context.reentrant_lock(NAME).acquire(blocking=False)


# A loss


@pytest.mark.parametrize("times", [1, 3])
def test_after_a_loss_every_release_says_so_and_then_it_can_be_had_again(
    backend: Backend, context: LockContext, times: int
) -> None:
    losses = Losses()
    lock = lost(backend, context, times, on_lost=losses)
    assert not lock.is_held
    for left in range(times, 0, -1):
        assert lock.count == left
        with pytest.raises(LockLost) as caught:
            lock.acquire()
        assert caught.value.reason is LossReason.KEY_GONE
        with pytest.raises(LockLost):
            context.reentrant_lock(NAME).acquire(blocking=False)
        with pytest.raises(LockLost):
            lock.release()
    assert lock.count == 0
    with pytest.raises((LockNotHeld, LockLost)):
        lock.release()
    assert lock.acquire(blocking=False)
    assert (lock.count, lock.is_held, lock.lost) == (1, True, None)
    assert lock.release() is True
    assert [event.reason for event in losses.all_told()] == [LossReason.KEY_GONE]


def test_a_loss_is_heard_of_on_the_way_out_of_nested_blocks(backend: Backend, context: LockContext) -> None:
    lock = context.reentrant_lock(NAME)

    def inner() -> None:
        with lock:
            backend.view.delete(NAME)
            with pytest.raises(LockLost):
                lock.reacquire()

    def outer() -> None:
        with lock:
            with pytest.raises(LockLost):
                inner()
            assert lock.count == 1
            with pytest.raises(LockLost):
                lock.raise_if_lost()

    with pytest.raises(LockLost):
        outer()
    assert lock.count == 0
    with lock:
        assert lock.is_held


def test_what_another_has_taken_meanwhile_is_left_to_him(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    lock = context.reentrant_lock(NAME)
    lock.acquire()
    backend.view.delete(NAME)
    with other.reentrant_lock(NAME) as others:
        with pytest.raises(LockLost) as caught:
            lock.release()
        assert caught.value.reason is LossReason.TAKEN
        assert others.owned()
        assert not lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)


def test_one_that_is_not_renewed_runs_out_and_is_not_given_again(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    lock = context.reentrant_lock(NAME, timeout=30.0, renew=False)
    lock.acquire()
    lock.acquire()
    clock.leap(29.9)  # nobody but the caller notices that the deadline has passed
    with pytest.raises(LockLost):
        lock.acquire()
    for _ in range(2):
        with pytest.raises(LockLost):
            lock.release()
    assert lock.count == 0


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
    try:
        assert not lock.owned()
    except LockServerError:
        pytest.fail("the server knows very well that it is not")
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


def test_a_lock_whose_thread_has_ended_is_renewed_no_more(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    lock = context.reentrant_lock(NAME, timeout=1.2, renew_every=0.05, on_lost=losses)
    with pytest.warns(ResourceWarning, match="was abandoned"):
        in_thread(lambda: (lock.acquire(), lock.acquire()))
        eventually(losses.all_told, LONG_S)
    assert [event.reason for event in losses.events] == [LossReason.ABANDONED]
    assert not lock.is_held
    with pytest.raises(LockNotHeld):
        lock.release()
    assert lock.acquire(blocking_timeout=LONG_S), "which its timeout makes possible"
    assert lock.release() is True
    assert not backend.view.exists(NAME)


def test_close_ends_it_and_says_why(backend: Backend) -> None:
    context = backend.context()
    lock = context.reentrant_lock(NAME)
    lock.acquire()
    lock.acquire()
    context.close()
    assert lock.lost is LossReason.CONTEXT_CLOSED
    assert not backend.view.exists(NAME)
    for _ in range(2):
        with pytest.raises(LockLost):
            lock.release()
