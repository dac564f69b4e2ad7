"""A calling thread: who it is, and how it waits for the one thread to do its work."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

from wheel_lock.engine.future import end_quietly
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.errors import LockUnavailable
from wheel_lock.lease import Owner
from wheel_lock.locks.callers import CallerOperation, Side
from wheel_lock.runtime.greenlets import greenlet_owner, new_gate
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.runtime.native import local

T = TypeVar("T")

_LOOK_AROUND_S = 1.0  # after this a waiting caller makes sure that the thread it waits for is still there
_LONGEST_LOOK_S = 16.0  # then again after twice the time, up to this


class _ThreadMark:
    """Sits in a thread's local storage and goes with it: that is how the end of a thread is noticed."""

    __slots__ = ("owner",)

    def __init__(self) -> None:
        self.owner = Owner()

    def __del__(self) -> None:
        self.owner.ended = True


_here = local()


def current_owner() -> Owner:
    """Return the owner that stands for the calling thread, or greenlet."""
    if "gevent" in sys.modules and (owner := greenlet_owner()) is not None:
        return owner
    try:
        mark: _ThreadMark = _here.mark
    except AttributeError:
        mark = _here.mark = _ThreadMark()
    return mark.owner


class SyncFuture(CallerOperation[T]):
    """An operation that a thread waits for."""

    __slots__ = ("_deaths", "_engine", "_gate")

    def __init__(self, engine: LockEngine) -> None:
        self._gate = gate = new_gate()
        # Not through super(), which takes its time.
        self._notify = gate.release
        self._value = None
        self.done = False
        self.error = None
        self._engine = engine
        self._deaths = engine.deaths

    @uninterrupted_start
    def wait(self) -> Iterable[Any]:
        try:
            self.undeliverable = None  # what it refers to refers to this
            look_s = _LOOK_AROUND_S
            while not self._gate.acquire(timeout=look_s):
                look_s = min(2 * look_s, _LONGEST_LOOK_S)
                timer = self._engine.timer
                if self._engine.deaths != self._deaths or timer.stopped:
                    raise LockUnavailable("The thread that keeps the locks ended before it answered")
                timer.wake()  # costs next to nothing, and an interrupted caller may have noted a wake that never came
        except BaseException:
            self._engine.interrupted = True
            raise
        if self.error is not None:
            end_quietly(self._engine.exiting)
        return ()

    def pause(self) -> Iterable[Any]:
        return ()


class ThreadSide(Side):
    """A lock object or a context for threads."""

    __slots__ = ()

    def _new_operation(self) -> CallerOperation[Any]:
        return SyncFuture(self._engine)


@uninterrupted_start
def run(steps: Generator[Any, None, T]) -> T:
    """Carry out an operation (see locks/operations.py) in the calling thread; return its result.

    Its generator never suspends, because what it waits for blocks in :meth:`SyncFuture.wait`. So an interruption strikes in
    the frame that it would strike in a plain function.
    """
    try:
        steps.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("an operation that a thread waits for must not suspend")
