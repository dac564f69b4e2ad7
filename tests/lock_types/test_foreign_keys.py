"""What is found at the server instead of the expected, and limits that are reached while a lock changes hands."""

from __future__ import annotations

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.callers import ThreadCaller
from tests.support.lock_types import NAME, make, traces
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockServerError, LossReason, TooManyLocks

pytestmark = pytest.mark.servers("real")

PERMITS = f"wheel_lock:permits:{{{NAME}}}"
QUEUE = f"wheel_lock:queue:{{{NAME}}}"
FENCE = f"wheel_lock:fence:{{{NAME}}}"


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
    eventually(lambda: len(losses.all_told()) == 1, LONG_S)
    assert losses.events[0].reason is LossReason.HOLD_LIMIT
    assert forgotten.all_told() == []
    with pytest.raises(LockLost):
        reader.release()


def test_a_fair_waiter_whose_turn_comes_when_there_is_no_room_gives_it_to_the_next(
    backend: Backend, other: LockContext
) -> None:
    context = backend.context(max_held=1)
    holder, something = other.fair_lock(NAME), context.lock("something")
    holder.acquire()
    waiting = ThreadCaller(context).locks.fair_lock(NAME, blocking_timeout=LONG_S).acquire.begin()
    eventually(lambda: backend.view.zcard(QUEUE) == 1, LONG_S)
    something.acquire()
    holder.release()
    with pytest.raises(TooManyLocks):
        waiting.result(LONG_S)
    assert holder.acquire(blocking_timeout=LONG_S), "it is free again"
    holder.release()
    something.release()
    eventually(lambda: traces(backend) == [], LONG_S)
    assert context.stats().held == 0


# Something else at the server


def test_a_permits_key_of_another_type_is_an_error_of_that_call_only(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext
) -> None:
    bystander, before = through_proxy.lock("bystander"), proxy.accepted
    bystander.acquire()
    real.view.rpush(PERMITS, "something else")
    semaphore = through_proxy.semaphore(NAME, 3)
    with pytest.raises(LockServerError, match="permits key"):
        semaphore.locked()
    with pytest.raises(LockServerError, match="permits key"):
        semaphore.acquire()
    assert through_proxy.rw_lock(NAME).write().locked() is False, "a lock that has nothing to do with permits"
    assert proxy.accepted == before, "the connection stays"
    assert bystander.release() is True
    assert not real.view.exists(NAME)


def test_something_else_in_place_of_the_queue_does_not_spoil_a_release(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    lock = context.fair_lock(NAME, on_lost=losses)
    lock.acquire()
    backend.view.set(QUEUE, "something else")
    assert lock.release() is True
    assert not backend.view.exists(NAME)
    assert lock.lost is None
    assert losses.all_told() == []
    assert backend.view.get(QUEUE) == b"something else"


@pytest.mark.parametrize("kind", ["exclusive", "fair", "write"])
def test_an_absurd_fence_of_somebody_else_is_a_clear_error(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext, kind: str
) -> None:
    real.view.set(FENCE, "9" * 23)
    bystander, before = through_proxy.lock("bystander"), proxy.accepted
    bystander.acquire()
    with pytest.raises(LockServerError, match="fence key"):
        make(through_proxy, kind, fencing=True).acquire(blocking=False)
    assert proxy.accepted == before, "the connection stays"
    assert bystander.release() is True
    assert real.view.get(FENCE) == b"9" * 23
    assert not real.view.exists(NAME)
