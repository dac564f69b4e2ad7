"""Grants: one lease each, behind the tokens of redis_lock's locks, and where a process finds them by name.

redis-py keeps a token and nothing else, and whoever knows it may release or extend. So every acquire gets a small lock of
its own here, which the lock object keeps alive: when that is dropped the grant is, and with it the renewals.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from wheel_lock.aio import lock as aio_lock
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import EVERLASTING
from wheel_lock.lock_types.caller_token import EVERLASTING_CALLER_TOKEN
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.operations import Steps, ask
from wheel_lock.sync import lock as sync_lock

# After these losses nobody here cares for the key any more, but it may well be there still, with our token.
_KEY_MAY_BE_LEFT = (
    LossReason.ABANDONED,
    LossReason.CONTEXT_CLOSED,
    LossReason.THREAD_DIED,
    LossReason.INTERNAL_ERROR,
)


class Grant(BaseLock):
    """One lease that has been granted. Whoever knows its token may change it, as in redis-py."""

    __slots__ = ()

    _engine: Engine

    def _caller_lease(self, verb: str) -> Lease | None:
        return self._lease

    def _disown(self, leases: Sequence[Lease] | None) -> None:
        """Keep it all the same: what becomes of the token is read from it."""

    @property
    def lease(self) -> Lease:
        """The lease."""
        assert self._lease is not None
        return self._lease

    @property
    def everlasting(self) -> bool:
        """Whether its key never expires."""
        return self._lock_type in (EVERLASTING, EVERLASTING_CALLER_TOKEN)

    @property
    def out_of_hands(self) -> bool:
        """Whether the engine has let go of it without knowing that the key is gone: only the server can tell."""
        lease = self.lease
        return lease.state in (State.RELEASED, State.EXPORTED) or lease.loss in _KEY_MAY_BE_LEFT

    @property
    def held_by_caller(self) -> bool:
        """Whether the calling thread, or task, holds it, and nobody else could release it."""
        return self.lease.owner is self._caller() and self.is_held

    def let_go(self) -> Steps[None]:
        """Renew it no more: somebody else releases it."""
        return ask(self, partial(self._engine.export, self._to_change("release")))

    def leave_alone(self) -> None:
        """Renew it no more and do not release it either, without waiting."""
        engine = self._engine
        engine.post_if_open(partial(engine.export, self.lease, Future(noop)))

    def give_back(self) -> None:
        """Nobody will know of it: release it, if it was granted at all, without waiting."""
        engine, lease = self._engine, self._lease
        if lease is not None:
            engine.post_if_open(partial(engine.release_many, [lease], Future(noop)))


class ThreadGrant(Grant, sync_lock.Lock):
    """A grant to a thread."""

    __slots__ = ()


class AsyncGrant(Grant, aio_lock.Lock):
    """A grant to a task.

    Attributes:
        unanswered: Whether its release was begun, and was cancelled or failed: it has been carried out, or will be.
    """

    __slots__ = ("unanswered",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unanswered = False

    async def release(self) -> bool:
        """Release it."""
        self.unanswered = True
        released = await super().release()
        self.unanswered = False
        return released


class Grants:
    """The latest grant of each name in each engine of this process. Weak: a grant goes with its lock object."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, bytes], weakref.ref[Grant]] = {}

    def add(self, engine: LockEngine, grant: Grant) -> None:
        """Take note of a new grant."""
        latest, place = self._latest, (id(engine), grant.lease.key)

        def gone(reference: weakref.ref[Grant]) -> None:
            if latest.get(place) is reference:
                latest.pop(place, None)

        latest[place] = weakref.ref(grant, gone)

    def find(self, engine: LockEngine, key: bytes) -> Grant | None:
        """Return the latest grant of a name, whatever has become of it, as long as its lock object is there."""
        reference = self._latest.get((id(engine), key))
        return None if reference is None else reference()

    def held(self) -> Iterable[Grant]:
        """Return those that are held."""
        grants = [reference() for reference in self._latest.copy().values()]  # copied in one step of the interpreter
        return [grant for grant in grants if grant is not None and grant.is_held]


GRANTS = Grants()
