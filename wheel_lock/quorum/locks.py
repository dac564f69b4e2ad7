"""The lock objects of a quorum: those of one server, with the differences."""

from __future__ import annotations

from typing import NoReturn

from wheel_lock.aio import lock as aio_lock
from wheel_lock.aio import primitives as aio_primitives
from wheel_lock.errors import WheelLockError, quoted
from wheel_lock.lease import Lease
from wheel_lock.locks.base import BaseLock
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.quorum.lease import QuorumLease
from wheel_lock.sync import lock as sync_lock
from wheel_lock.sync import primitives as sync_primitives


class BaseQuorumLock(BaseLock):
    """A lock object whose leases are granted by a majority."""

    __slots__ = ()

    in_bulk = False
    _lease_class = QuorumLease

    def _type_with_caller_token(self) -> NoReturn:
        raise ValueError("a lock of several masters makes its tokens itself, so token must be None")

    def _handoff(self, lease: Lease) -> Handoff:
        raise WheelLockError(
            f"The lock {quoted(self.name)} lives on several masters, which cannot pass it on in one step: it cannot be "
            "handed over",
            self.name,
        )

    def _look(self) -> NoReturn:
        raise WheelLockError(
            f"The lock {quoted(self.name)} lives on several masters, of which each may name another holder: its holder "
            "cannot be asked for",
            self.name,
        )


class QuorumLock(BaseQuorumLock, sync_lock.Lock):
    """An exclusive lock that a majority of masters grants, for threads. Made by ``LockContext.quorum(...).lock``.

    ``owned()`` asks the nodes whether a majority of them still has this lock's own tokens.
    """

    __slots__ = ()


class QuorumReentrantLock(BaseQuorumLock, sync_primitives.ReentrantLock):
    """The same, for a thread that acquires it again; the process keeps the hold count."""

    __slots__ = ()


class QuorumTaskLock(BaseQuorumLock, aio_lock.Lock):
    """An exclusive lock that a majority of masters grants, for tasks. Made by ``LockContext.quorum(...).asyncio.lock``.

    ``await owned()`` asks the nodes whether a majority of them still has this lock's own tokens.
    """

    __slots__ = ()


class QuorumTaskReentrantLock(BaseQuorumLock, aio_primitives.ReentrantLock):
    """The same, for a task that acquires it again."""

    __slots__ = ()
