"""The base class of contexts."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.locks.callers import Side
from wheel_lock.observe import ContextStats, HeldLock
from wheel_lock.options import seconds
from wheel_lock.runtime.timer import HashedWheelTimer


class BaseContext(Side):
    """An engine, for threads or for tasks."""

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. O(1) in the number of locks."""
        return self._engine.stats()

    def held(self) -> list[HeldLock]:
        """Return the locks that are held now, in order of acquisition. O(n)."""
        return self._engine.held_locks()

    @property
    def timer(self) -> HashedWheelTimer:
        """The timer that renews the locks; its ``new_timeout`` may be used for other purposes, too."""
        return self._engine.timer

    @property
    def closed(self) -> bool:
        """True if the context has been closed."""
        return self._engine.closed

    @property
    def _state(self) -> str:
        """The state as shown by ``repr()``."""
        return "closed" if self._engine.closed else f"{len(self._engine.held)} held"

    def __reduce__(self) -> NoReturn:
        # Not even a shallow copy: the first of the two to be collected would close the connections of both.
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: use the same one everywhere in a process, and make "
            "another in each other process; a held lock is handed over with export() and adopt()"
        )

    def _closing_time_s(self, timeout: float | None) -> float | None:
        """Return the time limit of a close in seconds; None if the engine is closed."""
        engine = self._engine
        limit_s = engine.options.close_timeout_s if timeout is None else seconds("timeout", timeout, above=0.0)
        return None if engine.over else limit_s


def close_later(engine: LockEngine) -> None:
    """Close ``engine`` without waiting."""
    engine.post_if_running(partial(engine.close, engine.options.close_timeout_s, Future(noop)))
