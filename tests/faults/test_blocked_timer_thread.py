"""The timer's thread is blocked by foreign code, or ends: callers return within their limits, and leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.backend import Backend, Losses, none_left, of
from tests.support.background import EVENTUALLY_S, Background
from tests.support.timers import Gate, NewTimer, ask, kill, messages
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockUnavailable, LossReason
from wheel_lock.sync.call import SyncFuture

pytestmark = [pytest.mark.slow, pytest.mark.servers("real")]


LIMITED: list[Callable[[LockContext], object]] = [
    lambda context: context.lock("b").acquire(blocking_timeout=0.3),
    lambda context: context.lock("b", blocking_timeout=0.3).acquire(),
    lambda context: context.multi_lock(["b", "c"]).acquire(blocking_timeout=0.3),
    lambda context: context.acquire_many(["b", "c"], blocking=True, blocking_timeout=0.3),
    lambda context: asyncio.run(context.asyncio.lock("b").acquire(blocking_timeout=0.3)),
]


def test_callers_with_a_limit_are_let_go_when_it_has_passed(
    backend: Backend, new_timer: NewTimer, caplog: pytest.LogCaptureFixture
) -> None:
    context = backend.context(timer=new_timer(), response_timeout=10 * EVENTUALLY_S)
    closing = backend.context(timer=context.timer)
    with context.lock("a"):
        with Gate(context.timer.post):
            calls: list[Background[object]] = [Background(partial(call, context)) for call in LIMITED]
            for each in [*calls, Background[object](lambda: closing.close(0.3))]:
                with pytest.raises(LockUnavailable, match="stands still"):
                    each.result()
        ask(context.timer)
        assert len([text for text in messages(caplog) if "has not turned" in text]) == 1
    eventually(lambda: none_left(backend, context))
    with context.lock("b", blocking_timeout=EVENTUALLY_S):
        pass


@pytest.mark.parametrize("api", ["thread", "task"])
def test_callers_without_a_limit_are_let_go_within_the_response_timeout(
    backend: Backend, new_timer: NewTimer, api: str
) -> None:
    context = backend.context(timer=new_timer(), response_timeout=1.5)
    lock = context.lock("a", thread_local=False)
    assert lock.acquire()
    work: dict[str, list[Callable[[], object]]] = {
        "thread": [lock.release, lambda: context.lock("b").acquire()],
        "task": [lambda: asyncio.run(context.asyncio.lock("b").acquire())],
    }
    with Gate(context.timer.post):
        for each in [Background(call) for call in work[api]]:
            with pytest.raises(LockUnavailable, match="stands still"):
                each.result()
    ask(context.timer)
    if lock.is_held:
        lock.release()
    eventually(lambda: none_left(backend, context))


class Closed:
    """A gate that is not opened before the eighth look."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def acquire(self, *, timeout: float) -> bool:
        self.pauses.append(timeout)
        return len(self.pauses) == 8

    def release(self) -> None: ...


def test_a_caller_that_has_waited_for_long_looks_when_its_limit_has_passed(
    backend: Backend, new_timer: NewTimer
) -> None:
    future: SyncFuture[None] = SyncFuture(backend.context(timer=new_timer())._engine)
    future._gate = gate = Closed()  # type: ignore[assignment]
    future.limit(future._engine, 3.0)
    future.wait()
    assert 2.0 in gate.pauses
    assert max(gate.pauses) <= 3.0


PROGRAM = """
import sys, threading, time
from wheel_lock import LockContext
context = LockContext.from_url(sys.argv[1])
lock = context.lock("a")
lock.acquire()
context.timer.post(lambda: time.sleep(1000.0))
time.sleep(0.1)
"""


def test_a_process_whose_timer_thread_is_blocked_can_end(backend: Backend) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, backend.url], timeout=2 * EVENTUALLY_S, check=True)
    assert ended.returncode == 0


# It is killed, or fails: it says so, nothing stays believed, and the next call works


NAME = "order:42"


def test_the_death_of_the_thread_is_reported_and_the_next_call_works(
    real: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    losses = Losses()
    context, untouched = (real.context(timer=real.timer()) for _ in range(2))
    survivor = untouched.lock("survivor", timeout=5.0)
    survivor.acquire()
    sibling = real.context(timer=context.timer)
    locks = of(context.acquire_many([f"many:{number}" for number in range(20)], 2.0, on_lost=losses))
    locks.append(sibling.lock("sibling", timeout=2.0, on_lost=losses))
    locks[-1].acquire()
    kill(context.timer)
    assert not any(lock.is_held for lock in locks)
    assert {lock.lost for lock in locks} == {LossReason.THREAD_DIED}
    eventually(lambda: len(losses.events) == len(locks))
    assert sorted(map(str, losses.names)) == sorted(str(lock.name) for lock in locks)
    assert all(event.at <= event.deadline for event in losses.events)
    eventually(lambda: [record for record in caplog.records if record.levelno == logging.CRITICAL])
    with pytest.raises(LockLost):
        locks[0].release()

    again = context.lock(NAME, timeout=1.5, renew_every=0.2)
    assert again.acquire()
    eventually(lambda: again.renewals >= 10)  # past its first expiry
    assert again.is_held
    assert real.view.get(NAME) == again.token
    again.release()
    assert real.view.get(NAME) is None
    with sibling.lock("sibling", timeout=2.0, blocking_timeout=5.0) as lock:
        assert lock.is_held
    assert len(losses.events) == 21
    assert survivor.is_held
    survivor.release()


def test_a_caller_whose_request_has_died_with_the_thread_gets_an_error(real: Backend) -> None:
    context = real.context(timer=real.timer())
    with context.lock(NAME):
        pass
    waiting = Background(SyncFuture[None](context._engine).wait)
    kill(context.timer)
    with pytest.raises(LockUnavailable, match="ended before it answered"):
        waiting.result()
