"""What several exclusive locks as one are without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Wait
from wheel_lock.engine.waiting.multi_lock import MultiLockWaiter
from wheel_lock.errors import LockLost, LockNotHeld, LossReason, quoted
from wheel_lock.lease import Lease
from wheel_lock.locks.base import BaseLock, time_limit
from wheel_lock.locks.callers import Side
from wheel_lock.options import LockOptions, lock_name
from wheel_lock.runtime.interruptions import insist, uninterrupted_start

L = TypeVar("L", bound=BaseLock)


class BaseMultiLock(Side, Generic[L]):
    """Several exclusive locks as one.

    Attributes:
        locks: Each of them by its name, in the order in which they are asked for.
    """

    __slots__ = ("_engine", "_options", "locks")

    def __init__(
        self, engine: Engine, names: Iterable[str | bytes], options: LockOptions, new_lock: Callable[[str | bytes], L]
    ) -> None:
        if isinstance(names, (str, bytes)):
            raise ValueError(f"names must be several names, not one text: {names!r:.80}")
        distinct = {lock_name(name): name for name in names}
        if not distinct:
            raise ValueError("names must hold at least one name")
        self._engine = engine
        self._options = options
        self.locks: Mapping[str | bytes, L] = {distinct[key]: new_lock(distinct[key]) for key in sorted(distinct)}

    @property
    def names(self) -> tuple[str | bytes, ...]:
        """Their names, each once."""
        return tuple(self.locks)

    @property
    def is_held(self) -> bool:
        """Whether the holder may believe in all of them *now*. O(n)."""
        return all(lock.is_held for lock in self.locks.values())

    @property
    def lost(self) -> LossReason | None:
        """Why the first was lost that was, or None."""
        return next((reason for lock in self.locks.values() if (reason := lock.lost) is not None), None)

    def raise_if_lost(self) -> None:
        """Raise :class:`LockLost` if one was lost, :class:`LockNotHeld` if they are not held for another reason."""
        for lock in self.locks.values():
            lock.raise_if_lost()

    def remaining(self) -> float:
        """Seconds until the first local deadline; 0 when they are not held."""
        return min(lock.remaining() for lock in self.locks.values())

    def _new_waiter(
        self,
        blocking: bool | None,
        blocking_timeout: float | None,
        token: object,
        future: Future[Sequence[Lease] | None],
    ) -> MultiLockWaiter:
        """Return the wait for all of them, ready to begin; what is wrong with it is raised before any I/O."""
        engine, options = self._server, self._options
        blocking, until = time_limit(engine, options, blocking, blocking_timeout)
        for lock in self.locks.values():
            lock._refuse_again()
        leases = [lock._new_lease(lock_name(name)) for name, lock in self.locks.items()]
        return MultiLockWaiter(engine.wait_queues, options, leases, False, blocking, until, future)

    def _take_granted(self, leases: Sequence[Lease]) -> None:
        """Keep what an acquire was granted."""
        for lock, lease in zip(self.locks.values(), leases, strict=True):
            lock._take(lease)

    @uninterrupted_start
    def _give_up(self, wait: Wait, leases: Sequence[Lease] | None) -> None:
        """The caller was interrupted while acquiring: undo what was granted, or may have been."""
        self._engine.interrupted = True  # some may have been taken already
        insist(self._engine.post_if_open, wait.give_up)

    def _to_release(self) -> tuple[list[Lease], dict[str | bytes, LossReason], LockNotHeld | None]:
        """Return what can be released, what was lost, and why one cannot be: it may have been released by itself."""
        leases: list[Lease] = []
        lost: dict[str | bytes, LossReason] = {}
        missing: LockNotHeld | None = None
        for name, lock in self.locks.items():
            try:
                leases.append(lock._to_change("release"))
            except LockLost as error:
                lost[name] = error.reason
            except LockNotHeld as error:
                missing = missing or error
        return leases, lost, missing

    def _let_go(self, leases: list[Lease] | None) -> None:
        """The caller was interrupted while releasing: have it done without waiting; None where it had not begun."""
        if leases is None:
            leases = [lease for lock in self.locks.values() if (lease := lock._own_lease()) is not None]
        self._engine.release_unawaited(partial(self._server.release_many, leases))

    def _not_acquired(self) -> str:
        return f"{self!r} could not be acquired in time"

    def __repr__(self) -> str:
        first, *others = self.names
        more = f" and {len(others)} more" if others else ""
        return f"<{type(self).__name__} {quoted(first)}{more}>"
