"""The semaphore: so many permits and no more, each a lease of its own, also where several share one object."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.background import Background
from tests.support.callers import Caller, NewCaller
from tests.support.lock_types import NAME, deaf, traces, zmembers
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockContext, LockNotHeld, WrongThread

pytestmark = pytest.mark.servers("real")


def permits_of(maker: Any, number: int, permits: int = 2) -> list[Any]:
    """So many objects that hold one permit each."""
    held = [maker.semaphore(NAME, permits) for _ in range(number)]
    for semaphore in held:
        assert semaphore.acquire(blocking=False)
    return held


def waiters(new_caller: NewCaller, waiter: LockContext, permits: int) -> list[Any]:
    """Three callers that are to wait for a permit each."""
    return [new_caller(waiter).locks.semaphore(NAME, permits, blocking_timeout=LONG_S) for _ in range(3)]


# How many


def test_an_object_holds_one_permit_per_thread_or_task(
    api: str, context: LockContext, me: Caller, another: Caller, new_caller: NewCaller
) -> None:
    mine = me.locks.semaphore(NAME, 3)
    theirs, unowned = another.sees(mine), new_caller(context).sees(mine)
    for semaphore in (mine, theirs):
        assert semaphore.acquire(blocking=False)
        with pytest.raises(LockAlreadyHeld):
            semaphore.acquire()
    assert context.stats().held == 2
    assert mine.token != theirs.token
    mine.release()
    assert not mine.locked()
    assert theirs.is_held
    with pytest.raises(LockNotHeld):
        mine.release()
    with pytest.raises(WrongThread, match=f"another {api[:-1]}"):
        unowned.release()
    assert mine.acquire(blocking=False)
    assert theirs.release()
    assert mine.is_held
    mine.release()
    with pytest.raises(LockNotHeld):
        mine.release()


# Another number for all


def test_more_permits_wake_those_who_wait(backend: Backend, me: Caller, new_caller: NewCaller) -> None:
    [semaphore] = permits_of(me.locks, 1, permits=1)
    waiter, _ = deaf(backend)
    theirs = waiters(new_caller, waiter, 1)
    waits = [other.acquire.begin() for other in theirs]
    channel = f"wheel_lock:wake:permit:{{{NAME}}}"
    eventually(lambda: backend.view.pubsub_numsub(channel)[0][1] == 1)
    semaphore.set_permits(3)
    eventually(lambda: sum(wait.done() for wait in waits) == 2, LONG_S)
    assert waiter.stats().waiting == 1
    assert semaphore.locked()
    semaphore.set_permits(4)
    for waiting in waits:
        assert waiting.result(LONG_S)
    for other in theirs:
        assert other.release()
    semaphore.release()


def test_the_number_is_kept_for_later_and_bad_numbers_are_refused(backend: Backend, me: Caller) -> None:
    semaphore = me.locks.semaphore(NAME, 1)
    semaphore.set_permits(2)
    assert semaphore.permits == 1, "which is what it was made with"
    for number in (0, -1, True, 1.5, "2"):
        with pytest.raises(ValueError, match="permits"):
            semaphore.set_permits(number)
    assert backend.view.get(f"wheel_lock:permits:{{{NAME}}}") == b"2"
    permits_of(me.locks, 2, permits=1)


# Several who share an object


def test_of_two_threads_at_once_the_second_is_refused_and_leaks_nothing(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext
) -> None:
    context = through_proxy
    semaphore = context.semaphore(NAME, 2, thread_local=False)
    proxy.to_client.delay_s = math.inf
    acquiring = [Background(semaphore.acquire) for _ in range(2)]
    eventually(lambda: len(zmembers(real)) == 2, LONG_S, "both are granted, and do not know it yet")
    proxy.to_client.delay_s = 0.0
    refused = 0
    for thread in acquiring:
        try:
            assert thread.result() is True
        except LockAlreadyHeld:
            refused += 1
    assert refused == 1
    eventually(lambda: zmembers(real) == [semaphore.token], LONG_S, "the second permit is given back")
    assert context.stats().held == 1
    assert semaphore.release() is True
    assert traces(real) == []
