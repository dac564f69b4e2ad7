"""The interface between an operation and its caller, which is a thread or a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import LockEngine

T = TypeVar("T")


class CallerFuture(Future[T]):
    """A future that its caller waits for: a thread blocks, a task suspends."""

    __slots__ = ()

    def if_undeliverable(self, give_up: Callable[[], object]) -> None:
        """Have ``give_up()`` called on the timer's thread if the result arrives when the event loop of the task is closed.

        For threads nothing is stored: ``give_up`` refers to what completes this future, and a cycle of the two would keep
        all that they refer to, lock objects among them, until the next garbage collection.
        """

    def wait(self) -> Iterable[Any]:
        """Wait until it is done, by ``yield from``: a thread blocks in the call, a task suspends in the returned generator.

        Raises:
            LockUnavailable: The timer's thread died meanwhile, or was stopped.
        """
        raise NotImplementedError

    def pause(self) -> Iterable[Any]:
        """Let other tasks of the same event loop run, by ``yield from``; a thread goes on at once."""
        raise NotImplementedError


class _Done(CallerFuture[None]):
    """A future whose result was there before it."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(noop)
        self.done = True

    def wait(self) -> Iterable[Any]:
        return ()

    pause = wait


RELEASED: CallerFuture[None] = _Done()
"""The future of a release that was done by the caller itself."""


class Side:
    """A lock or a context, for threads or for tasks."""

    __slots__ = ()

    _engine: LockEngine
    _future_class: ClassVar[Any]
    """The class of the futures that the caller can wait for; its argument is the engine."""

    @property
    def _server(self) -> Engine:
        """The engine of one server or cluster. The locks of a quorum do not use it: they have no hand-over and no bulk."""
        assert isinstance(self._engine, Engine)
        return self._engine

    def _new_future(self) -> CallerFuture[Any]:
        """Return a future that the caller can wait for."""
        future: CallerFuture[Any] = self._future_class(self._engine)
        return future
