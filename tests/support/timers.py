"""Timers for tests: threads that are killed or held up, what is on a timer, and what the library logs meanwhile."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.background import EVENTUALLY_S
from tests.support.waiting import eventually
from wheel_lock.runtime import loop
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout

NewTimer = Callable[..., HashedWheelTimer]


def drain() -> None:
    """Wait until the notifier thread has made all calls that were posted."""
    assert NOTIFIER.drain(EVENTUALLY_S), "the notifier thread is not getting on"


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
    """What the library has logged at `level` or above, after all pending calls of the notifier."""
    drain()
    return [record.getMessage() for record in caplog.records if record.name == "wheel_lock" and record.levelno >= level]


class Gate:
    """Holds a thread up, in a `with`: the one to which calls are posted so, by default that of the notifier."""

    def __init__(self, post: Callable[[Callable[[], None]], object] = NOTIFIER.post) -> None:
        self._post = post
        self._reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._reached.set()
        self._open.wait(EVENTUALLY_S)

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Gate:
        self._post(self.wait)
        assert self._reached.wait(EVENTUALLY_S)
        return self

    def __exit__(self, *error: object) -> None:
        self.open()


def nothing(timeout: Timeout) -> None:
    """A task that does nothing."""


def ask(timer: HashedWheelTimer) -> None:
    """Return when the timer's thread has dealt with all that was posted before."""
    done = threading.Event()
    timer.post(done.set)
    assert done.wait(EVENTUALLY_S), "the thread does not turn"


def timer_thread(timer: HashedWheelTimer) -> threading.Thread:
    """The one thread of `timer`. It is started from elsewhere, so it may take a moment to be there."""

    def found() -> threading.Thread | None:
        return next((each for each in threading.enumerate() if each.name == timer.name and each.ident), None)

    thread = eventually(found)
    assert thread is not None
    return thread


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Have `error` raised in another thread at its next step in Python code."""
    assert thread.ident is not None
    touched = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
    assert touched == 1


def kill(timer: HashedWheelTimer, error: type[BaseException] = SystemExit) -> None:
    """Raise `error` in the thread of `timer`, wherever that is just now, and return when it has ended of it.

    Where that interrupts a finaliser or the callback of a weak reference, the interpreter swallows it. And while a thread
    starts another, Python 3.11 knows both by one number, and may raise it in the new one. Then one more is sent.
    """
    deaths, thread = timer.deaths, timer_thread(timer)
    swallowed: list[str] = []
    report = sys.unraisablehook

    def note(what: Any) -> None:
        if what.exc_type is error:
            swallowed.append(repr(what.object))
        else:
            report(what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", note)
        while timer.deaths == deaths:
            turns = timer.turns
            raise_in(thread, error)
            timer.wake()  # an exception reaches a thread only when it runs
            eventually(lambda: timer.deaths > deaths or timer.turns > turns, EVENTUALLY_S)  # noqa: B023
            elsewhere = swallowed or sys.version_info < (3, 12)
            assert timer.deaths > deaths or elsewhere, "the thread has begun another turn in place of dying"
    thread.join(EVENTUALLY_S)
    assert not thread.is_alive(), "the thread has not died"
    assert timer.deaths == deaths + 1


def fall_asleep(timer: HashedWheelTimer) -> int:
    """Return when the thread has nothing left to do, with the number of turns that it has taken."""
    while True:
        turns, began = timer.turns, time.monotonic()
        time.sleep(0.05)
        # If that took much longer the thread may have been kept from running, too.
        if turns == timer.turns and time.monotonic() - began < 0.1:
            return turns


class Member(loop.Member):
    """A member of a timer that notes its notifications."""

    busy = False

    def __init__(self) -> None:
        self.notes: list[object] = []

    def end(self, how: End, error: Exception) -> None:
        self.notes.append(how)


ALLOCATIONS = 60  # exceeds the allocations of any call here


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
    gc.freeze()  # so that a collection scans little else
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
