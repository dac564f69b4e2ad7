"""Grants: one lease each, behind the tokens of redis_lock's locks, and a table of them by name.

A redis-py lock keeps a token only, which is sufficient to release or extend. So every acquire makes a small lock of its own
here, which the lock object keeps alive: when that is dropped the grant is, and with it the renewals.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from wheel_lock.aio import lock as aio_lock
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import EVERLASTING
from wheel_lock.lock_types.caller_token import EVERLASTING_CALLER_TOKEN
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.operations import Steps, ask
from wheel_lock.sync import lock as sync_lock

# After these losses the engine does nothing more about the key, but it may still exist, with our token.
_KEY_MAY_EXIST = (LossReason.ABANDONED, LossReason.CONTEXT_CLOSED, LossReason.THREAD_DIED, LossReason.INTERNAL_ERROR)


class Grant(BaseLock):
    """One granted lease. Any caller with its token may change it, as in redis-py."""

    __slots__ = ()

    _engine: Engine
    _wrong_owner: ClassVar[str | None] = None

    def _disown(self, leases: Sequence[Lease] | None) -> None:
        """Keep the lease all the same: it shows the fate of the token."""

    @property
    def lease(self) -> Lease:
        """The lease."""
        assert self._lease is not None
        return self._lease

    @property
    def everlasting(self) -> bool:
        """True if the key never expires."""
        return self._lock_type in (EVERLASTING, EVERLASTING_CALLER_TOKEN)

    @property
    def given_up(self) -> bool:
        """True if the engine has given up the lease, and the key may still exist: only the server can tell."""
        lease = self.lease
        return lease.state in (State.RELEASED, State.EXPORTED) or lease.loss in _KEY_MAY_EXIST

    def let_go(self) -> Steps[None]:
        """End the renewals, before a release by redis-py's own script."""
        return ask(self, partial(self._engine.export, self._to_change("release")))

    def leave_alone(self) -> None:
        """End the renewals without releasing the lock. Does not wait."""
        self._engine.post_if_open(partial(self._engine.export, self.lease, Future(noop)))

    def give_back(self) -> None:
        """Release the lock, if it was granted at all. Does not wait."""
        if self._lease is not None:
            self._engine.post_if_open(partial(self._engine.release_many, [self._lease], Future(noop)))


class ThreadGrant(Grant, sync_lock.Lock):
    """A grant to a thread."""

    __slots__ = ()


class AsyncGrant(Grant, aio_lock.Lock):
    """A grant to a task.

    Attributes:
        unanswered: True if its release was begun, and was cancelled or failed: it has been carried out, or will be.
    """

    __slots__ = ("unanswered",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unanswered: bool = False

    async def release(self) -> bool:
        """Release the grant."""
        self.unanswered = True
        released = await super().release()
        self.unanswered = False
        return released


class Grants:
    """The latest grant of each name in each engine of this process. Weak: a grant goes with its lock object."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, bytes], weakref.ref[Grant]] = {}

    def add(self, engine: Engine, grant: Grant) -> None:
        """Add a new grant."""
        latest, place = self._latest, (id(engine), grant.lease.key)

        def remove(reference: weakref.ref[Grant]) -> None:
            if latest.get(place) is reference:
                latest.pop(place, None)

        latest[place] = weakref.ref(grant, remove)

    def find(self, engine: Engine, key: bytes) -> Grant | None:
        """Return the latest grant of a name in any state, or None if its lock object is gone."""
        reference = self._latest.get((id(engine), key))
        return None if reference is None else reference()

    def held(self) -> Iterable[Grant]:
        """Return the grants that are held."""
        grants = [reference() for reference in list(self._latest.values())]  # atomic, unlike copy()
        return [grant for grant in grants if grant is not None and grant.is_held]


GRANTS = Grants()
