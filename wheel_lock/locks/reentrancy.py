"""Hold counts: how often one thread, or task, holds a lock that it can acquire again.

A hold belongs to its owner and to the lock's name, not to a lock object: two objects of one name, in one thread, are one
lock. It is counted in the process, and one lease at the server stands for all of it. That is safe because only the owner
counts, and because each acquire checks the lease first: with a lost lease nothing more is granted. A count at the server
would cost a round trip, and a command that is sent twice could change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from wheel_lock.engine.requests.adopt import Swap
from wheel_lock.errors import LockAlreadyHeld, LockUnavailable, UpgradeRefused, WheelLockError, quoted
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.lock_types.base import LockType
from wheel_lock.locks.base import BaseLock
from wheel_lock.options import LockOptions

EXCLUSIVE = "exclusive"
SHARED = "shared"


class HoldCount:
    """The hold of one owner on one lock.

    Attributes:
        lease: The lease that the server has granted.
        options: The options of the outermost acquire.
        exclusive: The number of acquires as a writer, or of a reentrant lock.
        shared: The number of acquires as a reader.
        downgraded: True if it was held as a writer, and is no longer.
        swap: The request that replaces the writer's lease with a reader's, or None.
    """

    __slots__ = ("downgraded", "exclusive", "lease", "options", "shared", "swap")

    def __init__(self, lease: Lease, options: LockOptions) -> None:
        self.lease: Lease = lease
        self.options: LockOptions = options
        self.exclusive: int = 0
        self.shared: int = 0
        self.downgraded: bool = False
        self.swap: Swap | None = None

    def add(self, half: str, times: int) -> None:
        """Add ``times`` to the count of a half. An interruption in here leaves it unchanged."""
        if half == EXCLUSIVE:
            self.exclusive += times
        else:
            self.shared += times

    def times(self, half: str) -> int:
        """Return how often a half is held."""
        count: int = getattr(self, half)
        return count

    @property
    def over(self) -> bool:
        """True if the lock was released as often as it was acquired."""
        return self.exclusive + self.shared == 0

    @property
    def in_flight(self) -> bool:
        """True if a downgrade was interrupted and the server has not confirmed the reader's lease yet."""
        return self.lease.state is State.PENDING and self.lease.group.alive


class BaseReentrantLock(BaseLock):
    """A lock object that shows and changes the caller's hold."""

    # No __slots__: a class cannot have two bases with slots of their own, and these objects are few.

    _last: HoldCount | None = None
    in_bulk = False
    _family: ClassVar[str] = "reentrant"
    _half: ClassVar[str] = EXCLUSIVE

    def _type_with_caller_token(self) -> LockType:
        raise ValueError("a reentrant lock makes its tokens itself, so token must be None")

    def _number(self) -> int:
        """Return the number of the calling thread or task, which the token shows to users of the server."""
        raise NotImplementedError

    def _new_token(self) -> bytes:
        return super()._new_token() + b":%d" % self._number()

    def _new_owner(self) -> Owner:
        return self._caller()

    @property
    def count(self) -> int:
        """The number of acquires that the caller has not released yet."""
        hold = self._hold(self._caller())
        return hold.times(self._half) if hold is not None and hold.lease.group.alive else 0

    @property
    def _hold_key(self) -> tuple[object, str, bytes]:
        return self._engine, self._family, self._encoded_name()

    def _hold(self, owner: Owner) -> HoldCount | None:
        return None if owner.holds is None else owner.holds.get(self._hold_key)

    def _drop(self, owner: Owner) -> None:
        if owner.holds is not None:
            owner.holds.pop(self._hold_key, None)

    def _acquire_again(self) -> bool:
        """Count one acquire more if the caller holds the lock; return False if it does not. Needs no request.

        Raises:
            LockLost: The lock was lost; each acquire of it has still to be released.
            LockUnavailable: The outcome of an interrupted downgrade is not known yet.
            UpgradeRefused: The lock is held for reading, and acquired for writing.
            LockAlreadyHeld: The lock is held without a fence, and acquired with one.
        """
        owner = self._caller()
        hold = self._hold(owner)
        if hold is None:
            return False
        if not hold.lease.group.alive:
            self._drop(owner)  # in a forked child: the hold is the parent's
            return False
        if self._half is EXCLUSIVE and hold.exclusive == 0:
            raise UpgradeRefused(
                f"The lock {quoted(self.name)} is held for reading by this caller, and cannot be acquired for writing: two "
                "who did that would wait for each other for ever. Release it first, or acquire it for writing at once",
                self.name,
            )
        if hold.in_flight:
            raise LockUnavailable(
                f"The server has not confirmed yet that the lock {quoted(self.name)} is held for reading only",
                self.name,
            )
        if not self._is_valid(hold.lease):
            raise self._lost(hold.lease)
        if self._options.fencing and self._half is EXCLUSIVE and hold.lease.fence is None:
            raise LockAlreadyHeld(
                f"The lock {quoted(self.name)} is held already, and was acquired without a fence", self.name
            )
        self._show(hold)
        hold.add(self._half, 1)  # last: an interruption before leaves the count unchanged
        return True

    def _show(self, hold: HoldCount) -> None:
        """Make this object show ``hold`` to other threads and tasks."""
        self._last, self._lease = hold, hold.lease

    def _take(self, lease: Lease) -> None:
        hold, owner = HoldCount(lease, self._options), lease.owner
        hold.add(self._half, 1)
        self._show(hold)
        holds = owner.holds
        if holds is None:
            holds = owner.holds = {}
        keys = list(holds)  # at once: a finaliser may change it
        if keys and keys[-1][0] is not self._engine:
            # A hold refers to all that its context has, and may never be released where that has been closed.
            for key in keys:
                if key[0].over:
                    holds.pop(key, None)
        holds[self._hold_key] = hold

    def _disown(self, leases: Sequence[Lease] | None) -> None:
        for lease in leases or ():
            hold = self._hold(lease.owner)
            if hold is not None and hold.lease is lease:
                self._drop(lease.owner)

    def _to_release(self) -> Lease | None:
        owner = self._caller()
        hold = self._hold(owner)
        if hold is None or not hold.times(self._half):
            return self._to_change("release")  # which raises the reason
        return self._count_down(owner, hold)

    def _count_down(self, owner: Owner, hold: HoldCount) -> Lease | None:
        """Count one release; return the lease if it is the last one, None if the lock is still held.

        The last one is counted by ``_count_off`` when it has begun, any other behind all that can be interrupted.
        """
        if hold.exclusive + hold.shared == 1:
            if hold.in_flight:
                return hold.lease  # the engine releases it as soon as the server has confirmed it
            try:
                return self._changeable(hold.lease, "release")
            except WheelLockError:
                self._drop(owner)
                raise
        error = None
        if not (hold.in_flight or self._is_valid(hold.lease)):
            error = self._lost(hold.lease)
        hold.add(self._half, -1)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame, which would keep it in a cycle
        return None

    def _let_go(self, lease: Lease | None) -> None:
        if lease is None:
            hold = self._hold(self._caller())
            if hold is None or not hold.times(self._half):
                return
            if hold.exclusive + hold.shared > 1:
                hold.add(self._half, -1)
                return
            lease = hold.lease
        super()._let_go(lease)

    def _count_off(self, lease: Lease) -> bool:
        hold = self._hold(lease.owner)
        if hold is None or hold.lease is not lease:
            return True
        hold.add(self._half, -1)
        if hold.over:
            self._drop(lease.owner)
        return hold.over

    def _own_lease(self) -> Lease | None:
        hold = self._hold(self._caller())
        return hold.lease if hold is not None and hold.times(self._half) else None

    def _own_or_latest(self) -> Lease | None:
        own = self._own_lease()
        last = self._last
        if own is not None or last is None or last.over:
            return own or self._lease
        # The hold may go on with another lease (a reader's, after a downgrade), or with the other half only.
        return last.lease if last.times(self._half) else None

    def __del__(self) -> None:
        """Keep the lease: it ends with the thread or task that holds it, not with this object."""
