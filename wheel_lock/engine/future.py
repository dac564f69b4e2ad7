"""Results to come. Each is set once, on the timer's thread; a caller's thread blocks on it, a task awaits it."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from enum import IntEnum
from typing import ClassVar, Generic, TypeVar

from wheel_lock.errors import copied
from wheel_lock.runtime.timer_threads import on_timer_thread

T = TypeVar("T")


class Exit(IntEnum):
    """The end that is about to come to the process."""

    NONE = 0
    INTERPRETER = 1
    """The end of the interpreter, which waits for threads that are not daemons."""
    SIGNAL = 2
    """A signal, behind which no thread goes on. The main thread waits until the locks are released."""


_SLEEP_S = {Exit.INTERPRETER: 1.0, Exit.SIGNAL: -1}  # another thread may join this one; -1 is for ever


def end_quietly(exiting: Exit) -> None:
    """Put a thread to sleep that does not outlive the process: an exception there could only be printed.

    What it was about to be granted has been given back.
    """
    if not exiting or on_timer_thread():
        return
    thread = threading.current_thread()
    if thread is not threading.main_thread() if exiting is Exit.SIGNAL else thread.daemon:
        gate = allocate_lock()
        gate.acquire()
        gate.acquire(timeout=_SLEEP_S[exiting])


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
        """Return the value, or raise a copy of the exception. Only when ``done``.

        The traceback refers to the caller's frames, and so to this future and to lock objects. The exception itself would
        keep these in a cycle, and where the engine remembers it (a reply may be late) for longer: a held lock that the
        caller forgets would be renewed on.
        """
        if self.error is not None:
            raise copied(self.error)
        return self._value
