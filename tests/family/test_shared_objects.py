"""Semaphore objects that several threads or tasks share, and acquire at the same moment."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from tests.aio.support import Run, until
from tests.family.support import NAME, NewThread, traces, zmembers
from tests.redis.support import LONG_S, Backend, Background
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockContext, LockNotHeld
from wheel_lock.lease import Owner


@pytest.fixture
def restless() -> Iterator[None]:
    """The interpreter goes from thread to thread at every opportunity."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# Without an owner


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


def test_of_two_threads_at_once_the_second_is_refused_and_leaks_nothing(real: Backend, proxy: TcpProxy) -> None:
    context = real.context_through(proxy, timer=real.timer())
    semaphore = context.semaphore(NAME, 2, thread_local=False)
    assert not semaphore.locked()  # the connection stands
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


# A permit for each thread


def test_a_permit_that_is_granted_while_another_thread_takes_its_own_is_not_forgotten(
    backend: Backend, context: LockContext, new_thread: NewThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore, here, there = context.semaphore(NAME, 3), new_thread(), new_thread()
    semaphore.acquire()
    taking, main = threading.Event(), threading.get_ident()

    def gone(owner: Owner) -> bool:
        if threading.get_ident() != main and not taking.is_set():
            taking.set()  # in the middle of it: let the other one come between
            wait([there.submit(semaphore.acquire, blocking=False)], 0.1)
        return owner.ended

    monkeypatch.setattr(Owner, "gone", property(gone))
    assert here.do(lambda: semaphore.acquire(blocking=False))
    assert there.do(lambda: True)
    assert taking.is_set(), "the test has come between"
    assert len(zmembers(backend)) == 3
    for thread in (here, there):
        assert thread.do(semaphore.release) is True
    assert semaphore.release() is True
    assert traces(backend) == []


@pytest.mark.slow
def test_many_threads_that_share_an_object_find_their_own_permits(
    backend: Backend, context: LockContext, restless: None
) -> None:
    semaphore, until_then = context.semaphore(NAME, 16), time.monotonic() + 0.4

    def work() -> int:
        rounds = 0
        while time.monotonic() < until_then or not rounds:
            assert semaphore.acquire(blocking_timeout=LONG_S)
            assert semaphore.is_held
            assert semaphore.release() is True
            rounds += 1
        return rounds

    threads = [Background(work) for _ in range(16)]
    assert all(thread.result(3 * LONG_S) for thread in threads)
    assert traces(backend) == []
    assert context.stats().held == 0
