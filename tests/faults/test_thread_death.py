"""The wheel's thread is killed, or fails. It says so, nothing stays believed, and the next call works."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

import wheel_lock
from tests.faults.support import (
    LATE_S,
    Losses,
    Pulse,
    assert_is_kept,
    held,
    now,
    own_context,
    wait_s,
)
from tests.support.redis_server import RedisServer
from tests.support.timers import kill
from tests.support.waiting import eventually
from wheel_lock import (
    HashedWheelTimer,
    Lock,
    LockContext,
    LockLost,
    LossReason,
    WheelLockError,
)

pytestmark = pytest.mark.slow

NAME = "order:42"
LIBRARY = os.path.dirname(wheel_lock.__file__)


def test_the_death_of_the_thread_is_told_and_the_next_call_works(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    losses = Losses()
    with own_context(redis_server) as context, own_context(redis_server) as untouched:
        survivor = untouched.lock("survivor", timeout=5.0)
        survivor.acquire()
        sibling = LockContext.from_url(redis_server.url, timer=context.timer)
        locks = held(context.acquire_many([f"many:{number}" for number in range(20)], 2.0, on_lost=losses))
        locks.append(sibling.lock("sibling", timeout=2.0, on_lost=losses))
        locks[-1].acquire()
        kill(context.timer)
        assert not any(lock.is_held for lock in locks)
        assert {lock.lost for lock in locks} == {LossReason.THREAD_DIED}
        eventually(lambda: len(losses) == len(locks))
        assert sorted(map(str, losses.names)) == sorted(str(lock.name) for lock in locks)
        assert all(event.at <= event.deadline for event in losses.events)
        eventually(lambda: [record for record in caplog.records if record.levelno == logging.CRITICAL])
        with pytest.raises(LockLost):
            locks[0].release()

        again = context.lock(NAME, timeout=1.5, renew_every=0.2)
        assert again.acquire()
        assert_is_kept(again, redis_server, timeout_s=1.5)
        with sibling.lock("sibling", timeout=2.0, blocking_timeout=5.0) as lock:
            assert lock.is_held
        assert len(losses) == 21
        assert survivor.is_held
        survivor.release()
        sibling.close()


PLACES = 40  # a renewal, its reply and what follows are fewer calls than that


class StrikeAtCall:
    """Raises once, on the thread that it is installed on, in the nth function of the library that is called there."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.where = "nowhere"

    def install(self) -> None:
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            self._left -= 1
            if self._left < 0:
                sys.settrace(None)
                self.where = frame.f_code.co_qualname
                raise MemoryError(f"struck in {self.where}")


def use(lock: Lock) -> None:
    try:
        with lock:
            pass
    except WheelLockError:
        pass


def end(context: LockContext) -> None:
    """Close a context, and stop its timer, which may be in any state."""
    closing = threading.Thread(target=context.close, args=(1.0,), daemon=True)
    closing.start()
    closing.join(3.0)
    if not closing.is_alive():
        context.timer.stop()


# The collector runs finalisers on any thread. What is raised in one goes no further: the interpreter reports it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_anywhere_on_the_thread_ends_no_lease_in_silence_and_keeps_no_caller_waiting(
    redis_server: RedisServer, pulse: Pulse, caplog: pytest.LogCaptureFixture
) -> None:
    """It may strike anywhere in what the thread does about a renewal, or about an acquire and a release."""
    caplog.set_level(logging.CRITICAL, logger="wheel_lock")
    client = redis_server.client()
    held_on: list[tuple[Lock, Losses, StrikeAtCall]] = []
    callers: list[tuple[threading.Thread, StrikeAtCall]] = []
    with ExitStack() as stack:
        for nth, calls in itertools.product(range(PLACES), (False, True)):
            context = LockContext.from_url(redis_server.url, timer=HashedWheelTimer(), response_timeout=2.0)
            stack.callback(end, context)
            lock = context.lock(f"place:{nth}:{calls}", timeout=1.0, on_lost=(losses := Losses()))
            with context.lock("warm up"):
                pass
            if not calls:
                lock.acquire()
            context.timer.post((strike := StrikeAtCall(nth)).install)  # the thread has nothing else to do
            if calls:
                callers.append((threading.Thread(target=use, args=(lock,), daemon=True), strike))
                callers[-1][0].start()
            else:
                held_on.append((lock, losses, strike))
        wait_s(2.0)
        silent = []
        for lock, losses, strike in held_on:
            told_in_time = len(losses) == 1 and all(
                event.at <= event.deadline + LATE_S + pulse.stood_s(event.deadline, event.at) for event in losses.events
            )
            if not told_in_time and (losses or lock.renewals < 2 or client.get(lock.name) != lock.token):
                silent.append(strike.where)
        assert not silent, f"nobody was told after an error in {', '.join(silent)}"
        until = now() + 10.0
        for caller, _ in callers:
            caller.join(max(0.0, until - now()))
        stuck = [strike.where for caller, strike in callers if caller.is_alive()]
        assert not stuck, f"callers wait for ever after an error in {', '.join(stuck)}"
        # Nobody holds those now, so nothing may be kept alive.
        eventually(lambda: not redis_server.admin.keys("place:*:True"), message="the names are free")
