"""The interface between an operation and its caller, which is a thread or a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.runtime.watchdog import Watchdog

T = TypeVar("T")


class CallerFuture(Future[T]):
    """A future that its caller waits for: a thread blocks, a task suspends. Here one whose result is there before that.

    Attributes:
        until: The caller's own time limit, in seconds of the timer's clock, or None. The timer's thread keeps it; the
            caller ends its wait itself only if that thread stands still.
    """

    __slots__ = ("until",)

    until: float | None

    def limit(self, engine: Engine, limit_s: float | None) -> None:
        """Set ``until``, given the seconds that are left, or None for no limit."""
        self.until = None if limit_s is None else engine.timer.clock.now() + limit_s

    def failure(self, engine: Engine, deaths: int, watchdog: Watchdog) -> str | None:
        """Return why no result is to be expected, or not in its time; None if one is.

        Args:
            engine: The engine that completes it.
            deaths: How often the thread of its timer had died when the caller began to wait.
            watchdog: The caller's, which has looked at the timer's thread.
        """
        if engine.deaths != deaths or engine.timer.stopped:
            return "The thread that keeps the locks ended before it answered"
        if not watchdog.standstill:
            return None
        in_time = self.until is None or engine.timer.clock.now() < self.until
        if in_time and watchdog.still_s < engine.options.response_timeout_s:
            return None
        return "The thread that keeps the locks stands still, and has not answered"

    def if_undeliverable(self, give_up: Callable[[], object]) -> None:
        """Have ``give_up()`` called on the timer's thread if the result arrives when the event loop of the task is closed.

        For threads nothing is stored: ``give_up`` refers to what completes this future, and a cycle of the two would keep
        all that they refer to, lock objects among them, until the next garbage collection.
        """

    def wait(self) -> Iterable[Any]:
        """Wait until it is done, by ``yield from``: a thread blocks in the call, a task suspends in the returned generator.

        Raises:
            LockUnavailable: The timer's thread died meanwhile, was stopped, or stands still and the caller's time is up.
        """
        return ()

    def pause(self) -> Iterable[Any]:
        """Let other tasks of the same event loop run, by ``yield from``; a thread goes on at once."""
        return ()


RELEASED: CallerFuture[None] = CallerFuture(noop)
"""The future of a release that was done by the caller itself."""
RELEASED.set_result(None)


class Side:
    """A lock or a context, for threads or for tasks."""

    __slots__ = ()

    _engine: Engine
    _future_class: Callable[[Engine], CallerFuture[Any]]
    """The class of the futures that the caller can wait for."""

    def _new_future(self) -> CallerFuture[Any]:
        return self._future_class(self._engine)
