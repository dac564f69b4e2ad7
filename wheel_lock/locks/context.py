"""What contexts have in common, whatever their engine: what is known of it, and how it is closed from either side."""

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
    """One side of an engine."""

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


def close_later(engine: LockEngine) -> None:
    """Close without waiting for it."""
    engine.post_if_running(partial(engine.close, engine.options.close_timeout_s, Future(noop)))
