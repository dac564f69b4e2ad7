"""The semaphore: so many permits and no more, each a lease of its own, also where several share one object."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import threading
import time
from concurrent.futures import wait
from functools import partial
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.background import Background
from tests.support.callers import Caller, NewCaller, ThreadCaller
from tests.support.event_loops import Run, until
from tests.support.lock_types import NAME, deaf, traces, zmembers
from tests.support.proxy import TcpProxy
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
from wheel_lock.lease import Owner

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
    theirs, nobodys = another.sees(mine), new_caller(context).sees(mine)
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
        nobodys.release()
    assert mine.acquire(blocking=False)
    assert theirs.release()
    assert mine.is_held
    mine.release()
    with pytest.raises(LockNotHeld):
        mine.release()


def test_a_permit_without_an_owner_may_be_released_by_anybody(backend: Backend, me: Caller, another: Caller) -> None:
    semaphore = me.locks.semaphore(NAME, 2, thread_local=False)
    another.sees(semaphore).acquire()
    assert semaphore.is_held
    with pytest.raises(LockAlreadyHeld):
        semaphore.acquire()
    assert semaphore.release()
    assert not backend.view.exists(NAME)


def test_one_who_goes_by_more_permits_does_not_wait_for_one_who_goes_by_fewer(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    [held] = permits_of(context, 1)
    few = new_caller(waiter).locks.semaphore(NAME, 1, blocking_timeout=LONG_S)
    waiting = few.acquire.begin()
    with backend.context().semaphore(NAME, 2, blocking=False):
        pass  # there is room
    with new_caller(waiter).locks.semaphore(NAME, 2, blocking_timeout=LONG_S):
        assert not waiting.done()
    held.release()
    assert waiting.result(LONG_S)
    few.release()


def test_a_release_lets_one_in_and_a_grant_lets_the_next_one_ask(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    held = permits_of(context, 3, permits=3)
    theirs = waiters(new_caller, deaf(backend)[0], 3)
    waits = [semaphore.acquire.begin() for semaphore in theirs]
    for semaphore in held:
        semaphore.release()
    for waiting in waits:
        assert waiting.result(LONG_S)
    for semaphore in theirs:
        assert semaphore.release()


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


def test_what_finds_data_under_its_name_is_refused(backend: Backend, context: LockContext) -> None:
    backend.view.set(NAME, "something else")
    semaphore = context.semaphore(NAME, 5)
    for patience in ({"blocking": False}, {"blocking_timeout": LONG_S}):
        with pytest.raises(LockServerError, match="string"):
            semaphore.acquire(**patience)
    assert semaphore.locked()
    assert backend.view.get(NAME) == b"something else"


# Leases


def test_a_crashed_holders_permit_comes_back_after_its_timeout(backend: Backend, context: LockContext) -> None:
    crashed, _ = backend.stepped_context()  # whose clock stands still: it renews nothing
    dead, semaphore = crashed.semaphore(NAME, 1, timeout=0.4), context.semaphore(NAME, 1)
    assert (dead.locked(), semaphore.locked()) == (False, False)  # the connections stand
    assert dead.acquire()
    assert not semaphore.acquire(blocking=False)
    assert semaphore.acquire(blocking_timeout=LONG_S)
    assert backend.view.zcard(NAME) == 1


def test_one_permit_that_is_lost_leaves_the_others_alone(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    first, second = (context.semaphore(NAME, 2, on_lost=losses, renew_every=0.02) for _ in range(2))
    first.acquire()
    second.acquire()
    assert first.token is not None
    backend.view.zrem(NAME, first.token)
    eventually(lambda: first.lost is LossReason.KEY_GONE, LONG_S)
    renewals = second.renewals
    eventually(lambda: second.renewals > renewals + 1, LONG_S)
    with pytest.raises(LockLost):
        first.release()
    assert first.acquire(blocking=False)
    assert [event.reason for event in losses.all_told()] == [LossReason.KEY_GONE]
    context.release_many([first, second])
    assert traces(backend) == []


def test_an_object_that_is_dropped_gives_back_what_every_caller_holds_through_it(
    context: LockContext, me: Caller, another: Caller
) -> None:
    losses = Losses()
    mine = me.locks.semaphore(NAME, 3, timeout=20.0, renew_every=0.05, on_lost=losses)
    theirs = another.sees(mine)
    mine.acquire()
    theirs.acquire()
    with pytest.warns(ResourceWarning, match="was abandoned"):
        del mine, theirs
        gc.collect()
        eventually(lambda: len(losses.all_told()) == 2, LONG_S, "both are told")
    assert {event.reason for event in losses.events} == {LossReason.ABANDONED}
    assert context.stats().held == 0


def test_a_permit_whose_owner_has_ended_is_renewed_no_more(context: LockContext, me: Caller, another: Caller) -> None:
    losses = Losses()
    semaphore = another.locks.semaphore(NAME, 1, timeout=20.0, renew_every=0.05, on_lost=losses)
    semaphore.acquire()
    with pytest.warns(ResourceWarning, match="was abandoned"):
        another.end()
        eventually(losses.all_told, LONG_S)
    with pytest.raises((WrongThread, LockNotHeld)):
        me.sees(semaphore).release()


# Several who share an object


def test_tasks_that_share_an_object_hold_a_permit_each(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        semaphore = context.asyncio.semaphore(NAME, 3, blocking_timeout=LONG_S)
        inside = 0
        full = asyncio.Barrier(3)  # opens when three are inside

        async def work() -> None:
            nonlocal inside
            for _ in range(3):
                async with semaphore:
                    inside += 1
                    assert inside <= 3
                    assert semaphore.is_held
                    await full.wait()
                    inside -= 1

        async with asyncio.timeout(LONG_S):
            await asyncio.gather(*[work() for _ in range(12)])
        assert context.stats().held == 0
        assert not backend.view.exists(NAME)

    run(main())


def test_of_two_tasks_at_once_the_second_is_refused_and_leaks_nothing(
    run: Run, backend: Backend, context: LockContext
) -> None:
    async def main() -> None:
        semaphore = context.asyncio.semaphore(NAME, 2, thread_local=False)
        outcomes = await asyncio.gather(semaphore.acquire(), semaphore.acquire(), return_exceptions=True)
        assert outcomes[0] is True
        assert isinstance(outcomes[1], LockAlreadyHeld)
        await until(lambda: zmembers(backend) == [semaphore.token], message="the second permit is given back")
        assert context.stats().held == 1
        assert semaphore.is_held
        assert await semaphore.release() is True
        with pytest.raises(LockNotHeld):
            await semaphore.release()
        assert traces(backend) == []
        assert await semaphore.acquire(), "it can be acquired again"
        await semaphore.release()

    run(main())
    assert context.stats().held == 0


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


def test_a_permit_that_is_granted_while_another_thread_takes_its_own_is_not_forgotten(
    backend: Backend, context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore, here, there = context.semaphore(NAME, 3), ThreadCaller(context), ThreadCaller(context)
    semaphore.acquire()
    taking, main = threading.Event(), threading.get_ident()

    def gone(owner: Owner) -> bool:
        if threading.get_ident() != main and not taking.is_set():
            taking.set()  # in the middle of it: let the other one come between
            wait([there.submit(partial(semaphore.acquire, blocking=False))], 0.1)
        return owner.ended

    monkeypatch.setattr(Owner, "gone", property(gone))
    assert here.do(lambda: semaphore.acquire(blocking=False))
    assert there.do(lambda: True)
    assert taking.is_set(), "the test has come between"
    assert len(zmembers(backend)) == 3
    for thread in (here, there):
        assert thread.do(semaphore.release) is True
        thread.end()
    assert semaphore.release() is True
    assert traces(backend) == []


@pytest.mark.slow
def test_many_threads_that_share_an_object_find_their_own_permits(backend: Backend, context: LockContext) -> None:
    switching_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # from thread to thread at every opportunity
    semaphore, until_then = context.semaphore(NAME, 16), time.monotonic() + 0.4

    def work() -> int:
        rounds = 0
        while time.monotonic() < until_then or not rounds:
            assert semaphore.acquire(blocking_timeout=LONG_S)
            assert semaphore.is_held
            assert semaphore.release() is True
            rounds += 1
        return rounds

    try:
        threads = [Background(work) for _ in range(16)]
        assert all(thread.result(3 * LONG_S) for thread in threads)
    finally:
        sys.setswitchinterval(switching_s)
    assert traces(backend) == []
    assert context.stats().held == 0
