"""What a caller waits for: a small object that is completed once, on the timer's thread.

A face (threads, asyncio) makes an operation, posts the work that will complete it, and waits in its own way.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_LONGEST_SLEEP_S = 1.0  # somebody may be waiting for this thread to end


def end_quietly(exiting: bool) -> None:
    """Return, unless the interpreter ends and this is a daemon thread: what that would be told it could only print.

    It sleeps, then, until it ends with the process.
    """
    if exiting and threading.current_thread().daemon:
        gate = allocate_lock()
        gate.acquire()
        gate.acquire(timeout=_LONGEST_SLEEP_S)


def noop() -> None:
    """Who is told of a result that nobody waits for."""


class Future(Generic[T]):
    """A result to come.

    Attributes:
        done: Whether it is there.
        error: The exception that it is, or None.
    """

    __slots__ = ("_notify", "_value", "done", "error")

    def __init__(self, notify: Callable[[], object]) -> None:
        """``notify`` is called, on the timer's thread, when the result is there; it must be quick and not raise."""
        self._notify = notify
        self._value: T | None = None
        self.done = False
        self.error: Exception | None = None

    def set_result(self, value: T) -> None:
        """Set the result. What comes after the first result is ignored."""
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
        """The result is there."""
        self._notify()

    def result(self) -> T:
        """Return the value, or raise the exception. Only when ``done``."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]
