"""Who hands over to whom: threads, tasks, processes. Whoever else wants the lock waits, and one adopter is enough."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.background import Background, in_thread
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, Lock, LockContext, LockLost, TooManyLocks, WrongThread

pytestmark = pytest.mark.servers("real")

NAME = "import:2026"
ROOT = Path(__file__).parents[2]


# Who adopts


def test_a_thread_adopts_for_itself_unless_it_is_told_otherwise(context: LockContext, lock: Lock) -> None:
    text = lock.export()
    adopted = in_thread(lambda: context.adopt(text, thread_local=False))
    text = adopted.export()  # any thread may: it belongs to none
    adopted = in_thread(lambda: context.adopt(text))
    with pytest.raises(WrongThread):
        adopted.release()


def test_threads_and_tasks_hand_over_to_each_other(backend: Backend, context: LockContext, lock: Lock) -> None:
    fence = lock.fence
    tasks = backend.context().asyncio

    async def pass_on(text: str) -> str:
        in_task = await tasks.adopt(text)
        assert in_task.is_held
        in_task = await tasks.adopt(await in_task.export(), thread_local=False)
        assert in_task.fence == fence
        return await in_task.export()

    with context.adopt(asyncio.run(pass_on(lock.export()))) as adopted:
        assert adopted.fence == fence


class Adopter:
    """Another process that is ready to adopt, see adopter.py."""

    def __init__(self, backend: Backend) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.redis.adopter"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell(backend.url)
        assert self.said() == "False"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def test_another_process_adopts(real: Backend) -> None:
    context = real.context()
    with Adopter(real) as adopter:
        lock = context.lock(NAME, timeout=3.0, renew_every=0.4, fencing=True)
        lock.acquire()
        waiter = Background(context.lock(NAME, thread_local=False).acquire)
        adopter.tell(lock.export())
        assert adopter.said() == f"True {lock.fence}"
        token = real.view.get(NAME)
        for _ in range(2):  # it is renewed there, and the first renewal is confirmed before the second
            eventually(lambda: real.view.pttl(NAME) < 2_750)
            eventually(lambda: real.view.pttl(NAME) > 2_750)
        assert real.view.get(NAME) == token
        assert not waiter.done
        adopter.tell("release it")
        held, renewals = adopter.said().split()
        assert held == "True"
        assert int(renewals) >= 1
        assert waiter.result()


def test_a_lock_whose_adopter_dies_is_free_within_its_timeout(real: Backend) -> None:
    with Adopter(real) as adopter:
        lock = real.context().lock(NAME, timeout=30.0)
        lock.acquire()
        adopter.tell(lock.export())
        assert adopter.said() == "True None"
        adopter.kill()
        assert 0 < real.view.pttl(NAME) <= 30_000


def _adopt_in_child(context: LockContext, text: str, fence: int) -> None:
    with context.adopt(text) as adopted:
        assert adopted.is_held
        assert adopted.fence == fence


def test_a_forked_child_adopts_with_the_context_of_its_parent(real: Backend) -> None:
    context = real.context()
    lock = context.lock(NAME, fencing=True)
    lock.acquire()
    child = multiprocessing.get_context("fork").Process(
        target=_adopt_in_child, args=(context, lock.export(), lock.fence)
    )
    child.start()
    child.join(LONG_S)
    assert child.exitcode == 0
    assert not real.view.exists(NAME)


# What an adoption needs


def test_an_adoption_counts_among_the_locks_that_a_context_may_hold(backend: Backend, lock: Lock) -> None:
    context, text = backend.context(max_held=1), lock.export()
    with context.lock("another"), pytest.raises(TooManyLocks):
        context.adopt(text)
    with context.adopt(text) as adopted:  # the text has not been used up
        assert adopted.is_held


def test_a_closed_context_neither_exports_nor_adopts(backend: Backend, context: LockContext, lock: Lock) -> None:
    text, other = lock.export(), backend.context()
    kept = other.lock("kept")
    kept.acquire()
    other.close()
    with pytest.raises(ContextClosed):
        other.adopt(text)
    with pytest.raises(LockLost):
        kept.export()
    context.adopt(text).release()


# Who else wants it


def test_whoever_contends_all_the_time_never_gets_in_between(backend: Backend, context: LockContext) -> None:
    over, intruders = threading.Event(), []

    def intrude() -> None:
        with backend.client() as client:
            while not over.is_set():
                intruders.extend([1] if client.set(NAME, "intruder", nx=True, px=60_000) else [])

    lock = context.lock(NAME, timeout=2.0)
    lock.acquire()
    calls = [Background(intrude) for _ in range(2)]
    waiting = [Background(other.lock(NAME, thread_local=False).acquire) for other in (context, backend.context())]
    contexts = [backend.context(), context]
    until = time.monotonic() + 0.3
    hops = 0
    while time.monotonic() < until or hops < 20:
        lock = contexts[hops % 2].adopt(lock.export())
        hops += 1
    over.set()
    for call in calls:
        call.result()
    assert intruders == []
    assert not any(waiter.done for waiter in waiting)
    assert lock.is_held
    lock.release()
    eventually(lambda: any(waiter.done for waiter in waiting), LONG_S)


def test_of_those_who_adopt_at_once_exactly_one_wins(backend: Backend, context: LockContext, lock: Lock) -> None:
    contexts = [backend.context() for _ in range(4)]
    for other in contexts:
        assert other.lock(NAME).locked()
    for _ in range(10):
        text, start = lock.export(), threading.Barrier(8)

        def adopt(number: int, text: str = text, start: threading.Barrier = start) -> Lock | None:
            start.wait()
            try:
                return contexts[number % 4].adopt(text, thread_local=False)
            except LockLost:
                return None

        adopting = [Background(lambda number=number: adopt(number)) for number in range(8)]  # type: ignore[misc]
        adopted = [found for found in [call.result() for call in adopting] if found is not None]
        assert len(adopted) == 1
        lock = adopted[0]
        assert lock.is_held
        assert backend.view.get(NAME) == lock.token
    lock.release()


def test_a_waiter_gets_a_lock_that_nobody_adopts_when_it_expires(real: Backend) -> None:
    context = real.context(fallback_interval=600.0)
    lock = context.lock(NAME, timeout=1.5)
    lock.acquire()
    waiter = context.lock(NAME, thread_local=False)
    waiting = Background(waiter.acquire)
    eventually(lambda: context.stats().waiting == 1)
    lock.export()
    assert waiting.result()
    assert waiter.is_held
    waiter.release()


def test_a_waiter_of_the_same_process_gets_it_when_the_adopter_releases_it(real: Backend) -> None:
    context = real.context(fallback_interval=60.0)
    first = context.lock(NAME)
    first.acquire()
    lock = context.lock(NAME, thread_local=False)
    holding = Background(lock.acquire)
    eventually(lambda: context.stats().waiting == 1)
    first.release()  # so that the one who exports has stood in line himself
    assert holding.result()
    waiting = Background(context.lock(NAME, thread_local=False).acquire)
    eventually(lambda: context.stats().waiting == 1)
    adopted = context.adopt(lock.export())
    adopted.release()
    assert waiting.result()
