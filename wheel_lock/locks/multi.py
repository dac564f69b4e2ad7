"""Several exclusive locks as one, without the waiting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from wheel_lock.diagnostics.tracing import trace
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.interfaces import Wait
from wheel_lock.engine.waiting.many import MultiLockWaiter
from wheel_lock.errors import LockLost, LockNotHeld, LossReason, copied, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks.base import BaseLock, OnLost, refuse_copy, time_limit
from wheel_lock.locks.callers import CallerFuture, Side
from wheel_lock.options import LockOptions, lock_name, plain_name
from wheel_lock.runtime.interruptions import insist, uninterrupted_start

L = TypeVar("L", bound=BaseLock)


class BaseMultiLock(Side, Generic[L]):
    """Several exclusive locks as one.

    Attributes:
        locks: The locks by name, in the order in which they are acquired.
    """

    __slots__ = ("_engine", "_options", "locks")

    _lock_class: ClassVar[Any]

    def __init__(
        self, engine: Engine, names: Iterable[str | bytes], options: LockOptions, on_lost: OnLost | None
    ) -> None:
        if isinstance(names, (str, bytes)):
            raise ValueError(f"names must be several names, not one text: {names!r:.80}")
        prefix = engine.options.prefix
        distinct = {lock_name(name, prefix): plain_name(name) for name in names}
        if not distinct:
            raise ValueError("names must hold at least one name")
        self._engine = engine
        self._options = options
        self.locks: Mapping[str | bytes, L] = {
            distinct[key]: self._lock_class(engine, EXCLUSIVE, distinct[key], options, on_lost, key)
            for key in sorted(distinct)
        }
        if engine.spans is not None:
            trace(self)

    @property
    def _kind(self) -> str:
        """The name of a lock type, for spans."""
        return "multi"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @property
    def names(self) -> tuple[str | bytes, ...]:
        """The names of the locks, each once."""
        return tuple(self.locks)

    @property
    def is_held(self) -> bool:
        """True if all of them are held *now*. O(n)."""
        return all(lock.is_held for lock in self.locks.values())

    @property
    def lost(self) -> LossReason | None:
        """The reason of the first loss found among them, or None."""
        return next((reason for lock in self.locks.values() if (reason := lock.lost) is not None), None)

    def raise_if_lost(self) -> None:
        """Raise :class:`LockLost` if one was lost, :class:`LockNotHeld` if they are not held for another reason."""
        for lock in self.locks.values():
            lock.raise_if_lost()

    def remaining(self) -> float:
        """Return the seconds until the first local deadline; 0 if they are not held."""
        return min(lock.remaining() for lock in self.locks.values())

    def _new_waiter(
        self, blocking: bool | None, limit: float | None, token: object, future: CallerFuture[Sequence[Lease] | None]
    ) -> MultiLockWaiter:
        """Return a waiter for all of them, ready to begin. Invalid parameters raise here, before any I/O."""
        engine, options = self._engine, self._options
        blocking, until = time_limit(engine, options, blocking, limit)
        future.until = until
        for lock in self.locks.values():
            lock._check_not_held()
        leases = [lock._new_lease(lock._encoded_name()) for lock in self.locks.values()]
        return MultiLockWaiter(engine.wait_queues, options, leases, False, blocking, until, future)

    def _take_granted(self, leases: Sequence[Lease]) -> None:
        """Keep the granted leases."""
        for lock, lease in zip(self.locks.values(), leases, strict=True):
            lock._take(lease)

    @uninterrupted_start
    def _give_up(self, wait: Wait, leases: Sequence[Lease] | None) -> None:
        """Undo an interrupted acquire, with all that was granted, or may have been."""
        self._engine.interrupted = True  # some may have been taken already
        insist(self._engine.post_if_open, wait.give_up)

    def _to_release(
        self, of_block: Sequence[Lease | None] | None = None
    ) -> tuple[list[Lease], dict[str | bytes, LossReason], LockNotHeld | None]:
        """Return the leases to release, the reasons of the lost ones, and the error of one that was released by itself.

        They are those ``of_block`` if such a one ends, in the order of the locks.
        """
        leases: list[Lease] = []
        lost: dict[str | bytes, LossReason] = {}
        missing = None
        for index, (name, lock) in enumerate(self.locks.items()):
            try:
                leases.append(
                    lock._to_change("release") if of_block is None else lock._changeable(of_block[index], "release")
                )
            except LockLost as error:
                lost[name] = error.reason
            except LockNotHeld as error:
                missing = missing or copied(error)  # without the traceback, which has this frame
        return leases, lost, missing

    def _let_go(self, leases: Sequence[Lease | None] | None) -> None:
        """Complete an interrupted release without waiting. ``leases`` is None if the release had not begun."""
        if leases is None:
            leases = [lock._own_lease() for lock in self.locks.values()]
        held = [lease for lease in leases if lease is not None]
        self._engine.release_unawaited(partial(self._engine.release_many, held))

    def __repr__(self) -> str:
        first, *others = self.names
        more = f" and {len(others)} more" if others else ""
        return f"<{type(self).__name__} {quoted(first)}{more}>"
