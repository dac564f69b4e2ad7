"""What contexts have in common, whatever their engine: what is known of it, and how it is closed from either side."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import NoReturn, Self

from wheel_lock import caller, tasks
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.engine.operation import Operation, nobody
from wheel_lock.errors import WheelLockError
from wheel_lock.interruptions import insist, uninterrupted_start
from wheel_lock.observe import ContextStats, HeldLock
from wheel_lock.options import seconds
from wheel_lock.timer import HashedWheelTimer


class Face:
    """One side of an engine."""

    _engine: LockEngine

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. O(1) in the number of locks."""
        return self._engine.stats()

    def held(self) -> list[HeldLock]:
        """Return what is held now, in order of acquisition. O(n)."""
        return self._engine.held_locks()

    @property
    def timer(self) -> HashedWheelTimer:
        """The timer that renews its locks; ``timer.new_timeout`` is there for everybody."""
        return self._engine.timer

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._engine.closed

    @property
    def _state(self) -> str:
        """A word for ``repr()``."""
        return "closed" if self._engine.closed else f"{len(self._engine.held)} held"

    def __reduce__(self) -> NoReturn:
        # Not even a shallow copy: the first of the two to be collected would hang up for both.
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: use the same one everywhere in a process, and make "
            "another in each other process"
        )

    def _closing_time_s(self, timeout: float | None) -> float | None:
        """How long a close may take; None where there is nothing to close any more."""
        engine = self._engine
        limit_s = engine.options.close_timeout_s if timeout is None else seconds("timeout", timeout, above=0.0)
        return None if engine.over else limit_s


class ThreadFace(Face):
    """The side that threads see."""

    def close(self, timeout: float | None = None) -> None:
        """End every lease, releasing them at the server unless ``release_on_close`` is off, and hang up.

        Locks that are still held are lost, for the reason "context closed". Closing twice is harmless.

        Args:
            timeout: Seconds it may take; ``close_timeout`` by default. What is not released by then expires.
        """
        limit_s = self._closing_time_s(timeout)
        if limit_s is not None:
            caller.wait_for(self._engine, partial(self._engine.close, limit_s))

    def __enter__(self) -> Self:
        return self

    @uninterrupted_start
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except WheelLockError:
            raise
        except BaseException:
            insist(_close_later, self._engine)
            raise

    def __del__(self) -> None:
        engine: LockEngine | None = getattr(self, "_engine", None)
        if engine is not None:
            engine.post_if_running(engine.retire)


class TaskFace(Face):
    """The side that tasks see.

    Args:
        engine: The engine.
        context: The side that threads see, which hangs up when nobody has it any more.
    """

    def __init__(self, engine: LockEngine, context: object = None) -> None:
        self._engine = engine
        self._context = context

    async def close(self, timeout: float | None = None) -> None:
        """Close the context, for threads too; see :meth:`wheel_lock.LockContext.close`."""
        limit_s = self._closing_time_s(timeout)
        if limit_s is not None:
            await tasks.wait_for(self._engine, partial(self._engine.close, limit_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not GeneratorExit:
            await self.close()
            return
        _close_later(self._engine)  # a coroutine that is thrown away in the middle may not await any more


def _close_later(engine: LockEngine) -> None:
    """Close without waiting for it."""
    engine.post_if_running(partial(engine.close, engine.options.close_timeout_s, Operation(nobody)))
