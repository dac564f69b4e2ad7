"""Callers: what a thread and a task have in common, seen from the objects that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import LockEngine

T = TypeVar("T")


class CallerOperation(Future[T]):
    """An operation whose caller waits for it: a thread that blocks, or a task that suspends."""

    __slots__ = ()

    def if_undeliverable(self, give_up: Callable[[], object]) -> None:
        """Have ``give_up()`` called, on the timer's thread, when the result comes and the task's event loop is closed.

        A thread is always there, so nothing is kept for it: ``give_up`` refers to what completes this operation, and a
        cycle of the two would keep whatever it has to do with, locks among them, until the next garbage collection.
        """

    def wait(self) -> Iterable[Any]:
        """Wait until it is done, by ``yield from``: a thread blocks in the call, a task suspends in what it returns.

        Raises:
            LockUnavailable: The thread that was to complete it died meanwhile, or was stopped.
        """
        raise NotImplementedError

    def pause(self) -> Iterable[Any]:
        """Let other tasks of the same event loop run, by ``yield from``; a thread goes on at once."""
        raise NotImplementedError


class Side:
    """A lock or a context: its callers are either threads or tasks."""

    __slots__ = ()

    _engine: LockEngine

    @property
    def _server(self) -> Engine:
        """The engine, where it is that of one server or cluster: locks of a quorum have no hand-over and no bulk."""
        assert isinstance(self._engine, Engine)
        return self._engine

    def _new_operation(self) -> CallerOperation[Any]:
        """Return an operation that the caller can wait for."""
        raise NotImplementedError
