"""What the tests of faults share: a context of a test's own, a record of losses, a resource that a fence protects."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.redis_server import RedisServer
from tests.support.standstill import Standstills
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, Lock, LockContext, LostEvent
from wheel_lock.runtime.notifier import NOTIFIER

LATE_S = 0.2  # how late a thread that can run may be to tell a loss where the machine is busy; idle, it is not late


def now() -> float:
    """CLOCK_BOOTTIME, which the library lives by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Pulse(Standstills):
    """Finer, by the library's clock: nobody can tell of a loss while one thread keeps the interpreter, either."""

    def __init__(self) -> None:
        super().__init__(now, nap_s=0.005, late_s=0.02, computing=True)


@contextmanager
def own_context(server: RedisServer | str, **options: Any) -> Iterator[LockContext]:
    """A context with a timer, and so a thread, of its own."""
    timer = HashedWheelTimer()
    url = server if isinstance(server, str) else server.url
    context = LockContext.from_url(url, timer=timer, **options)
    try:
        yield context
    finally:
        context.close(2.0)
        timer.stop()


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """The texts of all ResourceWarnings, which the library gives on a thread of its own; elsewhere they are errors.

    What earlier tests have dropped is collected, and its warnings are given, before the record begins.
    """
    gc.collect()
    assert NOTIFIER.drain(30.0)
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = lambda message, *_: texts.append(str(message))
        yield texts


def held(locks: Mapping[Any, Lock | None]) -> list[Lock]:
    """The locks that acquire_many() returned, all of which must have been free."""
    found = [lock for lock in locks.values() if lock is not None]
    assert len(found) == len(locks)
    return found


def wait_for_end(lock: Lock) -> None:
    """Return when it is not held any more."""
    eventually(lambda: not lock.is_held, message=f"{lock} ends")


def wait_s(duration_s: float) -> None:
    """Let real time pass: a server's clock cannot be moved by hand."""
    until = now() + duration_s
    eventually(lambda: now() >= until, timeout_s=duration_s + 10.0)


def assert_is_kept(lock: Lock, server: RedisServer, *, timeout_s: float) -> None:
    """It is held, it is renewed past its first expiry, and it can be released."""
    assert lock.is_held
    wait_s(1.1 * timeout_s)
    assert lock.is_held
    assert lock.renewals >= 3
    assert server.client().get(lock.name) == lock.token
    lock.release()
    assert server.client().get(lock.name) is None


class Losses:
    """An on_lost callback that remembers what it was told, and when."""

    def __init__(self) -> None:
        self.events: list[LostEvent] = []
        self.told_at: list[float] = []

    def __call__(self, event: LostEvent) -> None:
        self.told_at.append(now())
        self.events.append(event)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def names(self) -> list[str | bytes]:
        return [event.name for event in self.events]


class FencedRegister:
    """What a lock protects: it takes no write with a smaller fence than it has seen."""

    def __init__(self) -> None:
        self._highest = 0

    def write(self, fence: int | None) -> bool:
        assert fence is not None
        if fence < self._highest:
            return False
        self._highest = fence
        return True
