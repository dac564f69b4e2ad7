"""Results to come. Each is set once, on the timer's thread; a caller's thread blocks on it, a task awaits it."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from wheel_lock.runtime.timer_threads import on_timer_thread

T = TypeVar("T")

_LONGEST_SLEEP_S = 1.0  # another thread may join this one


def end_quietly(exiting: bool) -> None:
    """Put a daemon thread to sleep if the interpreter is ``exiting``: an exception there could only be printed.

    What it was about to be granted has been given back.
    """
    if exiting and threading.current_thread().daemon and not on_timer_thread():
        gate = allocate_lock()
        gate.acquire()
        gate.acquire(timeout=_LONGEST_SLEEP_S)


def noop() -> None:
    """The callback of a future without a caller."""


class Future(Generic[T]):
    """A result to come.

    Attributes:
        done: True if it is set.
        error: The exception that is the result, or None.
        may_be_abandoned: True if its caller may be gone without having given up.

    Args:
        notify: Called on the timer's thread when the result is set; it must be quick and not raise.
    """

    __slots__ = ("_notify", "_value", "done", "error")

    _value: T  # once it is done without an error

    may_be_abandoned: ClassVar[bool] = False

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self.done: bool = False
        self.error: Exception | None = None

    def set_result(self, value: T) -> None:
        """Set the result, unless there is one."""
        if not self.done:
            self._value = value
            self.done = True
            self._tell()

    def set_exception(self, error: Exception) -> None:
        """Set an exception as the result, unless there is one."""
        if not self.done:
            self.error = error
            self.done = True
            self._tell()

    def _tell(self) -> None:
        self._notify()

    @property
    def abandoned(self) -> bool:
        """True if the result can reach no caller any more: the event loop of its task is closed. From any thread."""
        return False

    def result(self) -> T:
        """Return the value, or raise the exception. Only when ``done``."""
        if self.error is not None:
            raise self.error
        return self._value
