"""The fair lock: first come, first served, across contexts; who gives up or dies keeps nobody waiting."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.callers import Caller, NewCaller, ThreadCaller
from tests.support.lock_types import NAME, deaf, traces, zmembers
from tests.support.waiting import eventually
from wheel_lock import (
    LockContext,
    LockLost,
    TooManyLocks,
)

pytestmark = pytest.mark.servers("real")

QUEUE = f"wheel_lock:queue:{{{NAME}}}"
ALIVE = f"wheel_lock:alive:{{{NAME}}}"


def queued(backend: Backend, places: int) -> None:
    """Return when so many stand in the queue."""
    eventually(lambda: backend.view.zcard(QUEUE) == places, LONG_S, f"{places} are queued")


def new(caller: Caller, **terms: Any) -> Any:
    """A fair lock, whose acquire waits for long unless it is told otherwise."""
    return caller.locks.fair_lock(NAME, **{"blocking_timeout": LONG_S, **terms})


def lock_of(context: LockContext, **terms: Any) -> Any:
    """The same for a thread of its own that is never ended; what it still waits for ends with its context."""
    return new(ThreadCaller(context), **terms)


def test_it_excludes_the_plain_lock_of_its_name(context: LockContext, other: LockContext) -> None:
    with context.fair_lock(NAME):
        assert not other.lock(NAME).acquire(blocking=False)
    with context.lock(NAME):
        assert not other.fair_lock(NAME).acquire(blocking=False)


def test_it_is_granted_in_the_order_of_arrival_across_contexts(backend: Backend, new_caller: NewCaller) -> None:
    contexts = [backend.context(fallback_interval=30.0) for _ in range(3)]
    with contexts[0].fair_lock(NAME):
        locks, waits = [], []
        for number in range(8):
            locks.append(new(new_caller(contexts[number % 3])))
            waits.append(locks[-1].acquire.begin())
            queued(backend, number + 1)
    for number, lock in enumerate(locks):
        assert waits[number].result(LONG_S)
        assert not any(later.done() for later in waits[number + 1 :])
        lock.release()
    assert traces(backend) == []


def test_who_does_not_want_to_wait_does_not_jump_the_queue(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    lock, holder = new(new_caller(waiter)), context.fair_lock(NAME)
    holder.acquire()
    waiting = lock.acquire.begin()
    queued(backend, 1)
    backend.view.delete(NAME)  # free, and nobody has said so
    assert not context.fair_lock(NAME).acquire(blocking=False)
    assert waiting.result(LONG_S), "and has been told by that try"
    assert lock.release()
    assert traces(backend) == []
    with pytest.raises(LockLost):
        holder.release()


def test_who_gives_up_leaves_the_queue_and_those_behind_go_on(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    other, clock = backend.stepped_context()
    lock, holder = new(new_caller(waiter)), context.fair_lock(NAME)
    holder.acquire()
    impatient = new(new_caller(other)).acquire.begin(blocking_timeout=0.3)
    queued(backend, 1)
    waiting = lock.acquire.begin()
    queued(backend, 2)
    clock.advance(0.3)
    assert impatient.result(LONG_S) is False
    queued(backend, 1)  # it says so without waiting for the server
    assert backend.view.zcard(ALIVE) == 1
    holder.release()
    assert waiting.result(LONG_S)
    assert lock.release()
    assert traces(backend) == []


@pytest.mark.parametrize("when", ["while it waits", "when it is its turn"])
def test_one_who_dies_is_skipped(backend: Backend, context: LockContext, when: str) -> None:
    holder = context.fair_lock(NAME)
    holder.acquire()
    if when == "while it waits":
        dead, _ = backend.stepped_context(fallback_interval=0.5)  # whose clock stands still: it is not heard of again
        stuck = lock_of(dead).acquire.begin()
        queued(backend, 1)
        eventually(lambda: not backend.view.exists(ALIVE), LONG_S)
    else:
        proxy = backend.proxy()
        dead = backend.context_through(proxy, fallback_interval=0.5, close_timeout=0.1)
        stuck = lock_of(dead).acquire.begin()
        queued(backend, 1)
    lock = lock_of(context)
    waiting = lock.acquire.begin()
    queued(backend, 1 if when == "while it waits" else 2)
    if when == "when it is its turn":
        proxy.to_server.delay_s = proxy.to_client.delay_s = math.inf
    holder.release()
    assert waiting.result(LONG_S)
    assert lock.release()
    dead.close()
    with pytest.raises(Exception, match="closed"):
        stuck.result(LONG_S)


def test_a_waiter_keeps_its_place_for_as_long_as_it_waits(backend: Backend, context: LockContext) -> None:
    lock = lock_of(backend.context(fallback_interval=0.5))
    with context.fair_lock(NAME):
        waiting = lock.acquire.begin()
        queued(backend, 1)
        [place] = zmembers(backend, QUEUE)
        first = backend.view.zscore(ALIVE, place)
        assert first is not None
        eventually(lambda: (backend.view.zscore(ALIVE, place) or 0) > first + 500, LONG_S)
        assert zmembers(backend, QUEUE) == [place]
    assert waiting.result(LONG_S)
    assert lock.release()


@pytest.mark.parametrize("terms", [{"retry_every": 0.02}, {"retry_every": 0.02, "max_attempts": 20}])
def test_who_polls_stands_in_the_queue_too(backend: Backend, context: LockContext, terms: dict[str, float]) -> None:
    holder, lock = context.fair_lock(NAME), lock_of(backend.context(), **terms)
    holder.acquire()
    polling = lock.acquire.begin()
    queued(backend, 1)
    if "max_attempts" in terms:
        assert polling.result(LONG_S) is False
        eventually(lambda: traces(backend) == [NAME.encode()], LONG_S)
    holder.release()
    if "max_attempts" not in terms:
        assert polling.result(LONG_S)
        assert lock.release()
    assert traces(backend) == []


def test_who_may_not_wait_any_more_does_not_stay_in_the_queue(backend: Backend, context: LockContext) -> None:
    crowded = backend.context(max_waiting=1)
    lock = lock_of(crowded)
    with context.fair_lock(NAME):
        waiting = lock.acquire.begin()
        with pytest.raises(TooManyLocks):
            crowded.fair_lock(NAME).acquire()
        queued(backend, 1)
    assert waiting.result(LONG_S)
    assert lock.release()
    assert traces(backend) == []
