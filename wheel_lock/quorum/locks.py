"""The lock objects of a quorum. They are those of one server; only what differs is here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from wheel_lock.aio import call as aio_call
from wheel_lock.aio import lock as aio_lock
from wheel_lock.aio import primitives as aio_primitives
from wheel_lock.engine.future import Future
from wheel_lock.errors import WheelLockError, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks.base import BaseLock, OnLost, call_site, time_limit
from wheel_lock.options import LockOptions, lock_name
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import lease_args
from wheel_lock.quorum.acquire import QuorumWaiter
from wheel_lock.quorum.engine import QuorumEngine
from wheel_lock.quorum.lease import QuorumLease
from wheel_lock.sync import lock as sync_lock
from wheel_lock.sync import primitives as sync_primitives
from wheel_lock.sync.call import call


class BaseQuorumLock(BaseLock):
    """A lock object whose leases are granted by a majority."""

    __slots__ = ()

    in_bulk = False
    _engine: QuorumEngine

    def __init__(
        self, engine: QuorumEngine, name: str | bytes, options: LockOptions, on_lost: OnLost | None, **more: Any
    ) -> None:
        super().__init__(engine, EXCLUSIVE, name, options, on_lost, **more)

    def _new_waiter(
        self,
        blocking: bool | None,
        blocking_timeout: float | None,
        token: str | bytes | None,
        future: Future[Sequence[Lease] | None],
    ) -> QuorumWaiter:
        engine = self._engine
        blocking, until = time_limit(engine, self._options, blocking, blocking_timeout)
        self._refuse_again()
        return QuorumWaiter(engine, self._new_lease(lock_name(self.name), token), blocking, until, future)

    def _new_lease(self, key: bytes, token: str | bytes | None = None) -> QuorumLease:
        engine, options = self._engine, self._options
        if token is not None:
            raise ValueError("a lock of several masters makes its tokens itself, so token must be None")
        place = call_site() if engine.options.track_acquisitions else None
        # Terms that each master's engine would refuse are refused first.
        engine.engines[0].group(key, EXCLUSIVE, options)
        terms = engine.quorum_group(options.timeout_s)
        wire = lease_args(key, self._new_token())
        return QuorumLease(self.name, wire, terms, self._new_owner(), self._loss_callback(), place, options)

    def _handoff(self, lease: Lease) -> Handoff:
        raise WheelLockError(
            f"The lock {quoted(self.name)} lives on several masters, which cannot pass it on in one step: it cannot be "
            "handed over",
            self.name,
        )

    def _own(self) -> QuorumLease | None:
        """The lease that the nodes can be asked about."""
        lease = self._own_or_latest()
        return lease if isinstance(lease, QuorumLease) and lease.group.alive else None


class _ForThreads(BaseQuorumLock):
    __slots__ = ()

    def owned(self) -> bool:
        """Ask the nodes whether a majority of them still has this lock's own tokens."""
        lease = self._own()
        return lease is not None and bool(call(self._engine, partial(self._engine.owned, lease)))


class QuorumLock(_ForThreads, sync_lock.Lock):
    """An exclusive lock that a majority of masters grants, for threads. Made by ``LockContext.quorum(...).lock``."""

    __slots__ = ()


class QuorumReentrantLock(_ForThreads, sync_primitives.ReentrantLock):
    """The same, for a thread that acquires it again; how often is counted in the process."""

    __slots__ = ()


class _ForTasks(BaseQuorumLock):
    __slots__ = ()

    async def owned(self) -> bool:
        """Ask the nodes whether a majority of them still has this lock's own tokens."""
        lease = self._own()
        return lease is not None and bool(await aio_call.call(self._engine, partial(self._engine.owned, lease)))


class QuorumTaskLock(_ForTasks, aio_lock.Lock):
    """An exclusive lock that a majority of masters grants, for tasks. Made by ``LockContext.quorum(...).asyncio.lock``."""

    __slots__ = ()


class QuorumTaskReentrantLock(_ForTasks, aio_primitives.ReentrantLock):
    """The same, for a task that acquires it again."""

    __slots__ = ()
