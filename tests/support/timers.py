"""Timers for tests: threads that are killed or held up, what is on a timer, and what the library logs meanwhile."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import pytest

from tests.support.background import PATIENCE_S
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout

NewTimer = Callable[..., HashedWheelTimer]


def drain() -> None:
    """Wait until the notifier thread has dealt with all that it had been told."""
    assert NOTIFIER.drain(PATIENCE_S), "the notifier thread is not getting on"


class RaisingHandler(logging.Handler):
    """What a user's faulty log handler does."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the disk of the log is full")


@contextmanager
def log_handler(handler: logging.Handler) -> Iterator[None]:
    """Have `handler`, and no other, see what the library logs."""
    logger = logging.getLogger("wheel_lock")
    propagate, handlers = logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [handler]
    try:
        yield
    finally:
        logger.propagate, logger.handlers = propagate, handlers


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    """What the library has logged at `level` or above, after all that is still to be told."""
    drain()
    return [record.getMessage() for record in caplog.records if record.name == "wheel_lock" and record.levelno >= level]


class Gate:
    """Holds the notifier thread up, in a `with`, so that what is told meanwhile is queued."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._reached.set()
        self._open.wait(PATIENCE_S)

    def __enter__(self) -> Gate:
        NOTIFIER.post(self.wait)
        assert self._reached.wait(PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.set()


def nothing(timeout: Timeout) -> None:
    """A task that does nothing."""


def ask(timer: HashedWheelTimer) -> None:
    """Return when the timer's thread has dealt with all that was posted before."""
    done = threading.Event()
    timer.post(done.set)
    assert done.wait(PATIENCE_S), "the thread does not turn"


def timer_thread(timer: HashedWheelTimer) -> threading.Thread:
    """The one thread of `timer`, which must run."""
    (thread,) = [thread for thread in threading.enumerate() if thread.name == timer.name]
    return thread


def kill(timer: HashedWheelTimer, error: type[BaseException] = SystemExit) -> None:
    """Raise `error` in the thread of `timer`, wherever that is just now, and return when it has ended of it."""
    deaths, thread = timer.deaths, timer_thread(timer)
    assert thread.ident is not None
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error)) == 1
    timer.wake()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the thread has not died"
    assert timer.deaths == deaths + 1


def fall_asleep(timer: HashedWheelTimer) -> int:
    """Return when the thread has nothing to do any more, with the number of turns that it has taken."""
    while True:
        turns, began = timer.turns, time.monotonic()
        time.sleep(0.05)
        # If that took much longer the thread may have been kept from running, too.
        if turns == timer.turns and time.monotonic() - began < 0.1:
            return turns


class Member:
    """Something that lives on a timer and notes what it is told."""

    def __init__(self) -> None:
        self.busy = False
        self.told: list[str] = []

    def thread_died(self) -> None:
        self.told.append("thread died")

    def after_fork_in_child(self) -> None:
        self.told.append("forked")

    def timer_stopped(self) -> None:
        self.told.append("timer stopped")


ALLOCATIONS = 60  # more than any call here makes


class Garbage:
    """A cycle that does something when it is collected."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._cycle = self

    def __del__(self) -> None:
        self._action()


def with_garbage_at_every_allocation(call: Callable[[], object], new_garbage: Callable[[], object]) -> None:
    """Run `call` with a collection at its first allocation, then with one at its second, and so on.

    That is how finalisers run in the middle of other code, only that there it takes years. For a forked child: a
    finaliser that blocks ends all collection in its process.
    """
    gc.collect()
    gc.freeze()  # so that a collection looks at little else
    for allocations in range(1, ALLOCATIONS + 1):
        gc.collect()
        gc.disable()
        new_garbage()
        gc.set_threshold(gc.get_count()[0] + allocations)
        gc.enable()
        try:
            call()
        finally:
            gc.disable()
            gc.set_threshold(700)
