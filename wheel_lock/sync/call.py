"""The calling thread: its owner, and its wait for the timer's thread."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterable
from time import monotonic
from typing import Any, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import end_quietly
from wheel_lock.errors import LockUnavailable
from wheel_lock.lease import Owner, ThreadOwner
from wheel_lock.locks.callers import CallerFuture, Side
from wheel_lock.runtime.greenlets import greenlet_owner, new_gate
from wheel_lock.runtime.interruptions import finaliser, uninterrupted_start
from wheel_lock.runtime.native import local
from wheel_lock.runtime.watchdog import LOOK_S, Watchdog

T = TypeVar("T")

_CHECK_AFTER_S = 1.0  # a waiting caller then checks that the timer's thread is alive
_LONGEST_CHECK_S = 16.0  # each further check comes after twice the time, up to this


class _ThreadMark:
    """An item of a thread's local storage. It is collected with the thread, and so marks the end of its owner."""

    __slots__ = ("owner",)

    def __init__(self) -> None:
        self.owner = ThreadOwner()

    @finaliser
    def __del__(self) -> None:
        if hasattr(self, "owner"):  # else its making was interrupted
            self.owner.ended = True


_here = local()


def current_owner() -> Owner:
    """Return the owner that stands for the calling thread or greenlet."""
    if "gevent" in sys.modules and (owner := greenlet_owner()) is not None:
        return owner
    try:
        mark: _ThreadMark = _here.mark
    except AttributeError:
        mark = _here.mark = _ThreadMark()
    return mark.owner


class SyncFuture(CallerFuture[T]):
    """A future that a thread waits for."""

    __slots__ = ("_deaths", "_engine", "_gate")

    def __init__(self, engine: Engine) -> None:
        self._gate = gate = new_gate()
        # Not through super(), which would cost a call.
        self._notify = gate.release
        self.done = False
        self.error: Exception | None = None
        self.until: float | None = None
        self._engine = engine
        self._deaths = engine.deaths

    def _tell(self) -> None:
        self._engine.timer.complete(self._notify)

    @uninterrupted_start
    def wait(self) -> Iterable[Any]:
        try:
            if not self._gate.acquire(timeout=_CHECK_AFTER_S):
                self._wait_on()
        except BaseException:
            self._engine.interrupted = True
            raise
        if self.error is not None:
            end_quietly(self._engine.exiting)
        return ()

    def _wait_on(self) -> None:
        """Wait on, and check that the timer's thread is alive, and turns."""
        engine, check_s, pause_s = self._engine, _CHECK_AFTER_S, 0.0
        watchdog = Watchdog(engine.timer)
        while True:
            failure = self.failure(engine, self._deaths, watchdog)
            if failure is not None:
                raise LockUnavailable(failure)
            if watchdog.look(monotonic()) or pause_s != LOOK_S:
                pause_s = LOOK_S  # then it is seen whether this look has made it turn
            else:
                pause_s = check_s = min(2 * check_s, _LONGEST_CHECK_S)
            left_s = math.inf if self.until is None else self.until - engine.timer.clock.now()
            if self._gate.acquire(timeout=max(min(pause_s, left_s), LOOK_S)):
                return

    def pause(self) -> Iterable[Any]:
        return ()


class ThreadSide(Side):
    """A lock object or a context for threads."""

    __slots__ = ()

    _future_class = SyncFuture


@uninterrupted_start
def run(steps: Generator[Any, None, T]) -> T:
    """Carry out an operation (see locks/operations.py) in the calling thread; return its result.

    The generator never suspends, because it blocks in :meth:`SyncFuture.wait`. So an interruption is raised in the same
    frame as in a plain function.
    """
    try:
        steps.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("an operation that a thread waits for must not suspend")
