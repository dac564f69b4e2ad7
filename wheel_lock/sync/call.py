"""A calling thread: who it is, and how it waits for the one thread to do its work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from wheel_lock.engine.future import Operation, end_quietly
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.errors import LockAlreadyHeld, LockUnavailable
from wheel_lock.lease import Owner
from wheel_lock.runtime.greenlets import greenlet_owner, new_gate
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.runtime.native import local

T = TypeVar("T")
P = ParamSpec("P")

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


class Waiting(Operation[T]):
    """An operation that a thread waits for."""

    __slots__ = ("_deaths", "_engine", "_gate")

    def __init__(self, engine: LockEngine) -> None:
        self._gate = gate = new_gate()
        super().__init__(gate.release)
        self._engine = engine
        self._deaths = engine.deaths

    @uninterrupted_start
    def result(self) -> T:
        """Wait, and return the result or raise its exception.

        Raises:
            LockUnavailable: The thread that was to complete it died meanwhile, or was stopped.
        """
        try:
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
        return super().result()


def wait_for(engine: LockEngine, work: Callable[[Operation[T]], object]) -> T:
    """Have work done on the timer's thread and wait for its result.

    Args:
        engine: Whose thread.
        work: Called there with the operation that it is to complete.

    Raises:
        LockUnavailable: The thread died meanwhile.
        Exception: Whatever the work failed with.
    """
    waiting: Waiting[T] = Waiting(engine)
    engine.submit(partial(work, waiting))
    return waiting.result()


def behind_releases(engine: LockEngine, begin: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Return what ``begin`` returns for these arguments, which may begin with a look at what is held.

    A release that an interrupted caller has left may be on its way to the timer's thread, and the lock looks held until
    then: LockAlreadyHeld is raised only when that thread has come by. Where no caller was interrupted it comes at once.
    """
    try:
        return begin(*arguments, **options)
    except LockAlreadyHeld:
        if not engine.interrupted:
            raise
    wait_for(engine, engine.come_by)
    return begin(*arguments, **options)
