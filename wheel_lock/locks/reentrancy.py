"""Holds: what one thread, or task, holds of a lock that it can acquire again, and how often.

A hold belongs to its owner and to the lock's name, not to a lock object: two objects of one name, in one thread, are one
lock. So it is counted here, in the process, and the server is asked once for all of it. That is safe because only the
owner itself counts, and because each time the lease is looked at first: where that has been lost nothing is granted on
its account any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from wheel_lock.engine.requests.swap import Swap
from wheel_lock.errors import LockAlreadyHeld, LockUnavailable, UpgradeRefused, WheelLockError, quoted
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.lock_types.base import LockType
from wheel_lock.locks.base import BaseLock
from wheel_lock.options import LockOptions, lock_name

EXCLUSIVE = "exclusive"
SHARED = "shared"


class HoldCount:
    """What one owner holds of one lock.

    Attributes:
        lease: What the server has granted.
        options: How the outermost acquire has asked for it.
        exclusive: How often it was acquired for itself alone.
        shared: How often it was acquired together with others.
        downgraded: Whether it was held alone, and is so no more.
        swap: What puts another lease in the place of the first, when its owner goes on reading; else None.
    """

    __slots__ = ("downgraded", "exclusive", "lease", "options", "shared", "swap")

    def __init__(self, lease: Lease, options: LockOptions) -> None:
        self.lease = lease
        self.options = options
        self.exclusive = 0
        self.shared = 0
        self.downgraded = False
        self.swap: Swap | None = None

    def add(self, half: str, times: int) -> None:
        """Count one acquire, or release, of a half. Whoever is interrupted in here has not counted it."""
        if half == EXCLUSIVE:
            self.exclusive += times
        else:
            self.shared += times

    def times(self, half: str) -> int:
        """How often a half is held."""
        count: int = getattr(self, half)
        return count

    @property
    def over(self) -> bool:
        """Whether it was released as often as it was acquired."""
        return self.exclusive + self.shared == 0

    @property
    def in_flight(self) -> bool:
        """Whether its owner was interrupted when he went on reading, and the server has not confirmed that yet."""
        return self.lease.state is State.PENDING and self.lease.group.alive


class BaseReentrantLock(BaseLock):
    """A lock object through which the caller's hold is seen and changed."""

    # No __slots__: a class cannot have two bases with slots of their own, and there are not very many of these objects.

    _last: HoldCount | None = None
    in_bulk = False
    _family: ClassVar[str] = "reentrant"
    _half: ClassVar[str] = EXCLUSIVE

    def _type_with_caller_token(self) -> LockType:
        raise ValueError("a reentrant lock makes its tokens itself, so token must be None")

    def _number(self) -> int:
        """The number of the calling thread or task, for who looks at the server."""
        raise NotImplementedError

    def _new_token(self) -> bytes:
        return super()._new_token() + b":%d" % self._number()

    def _new_owner(self) -> Owner:
        return self._caller()

    # -- the hold ----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How often the caller holds it."""
        hold = self._hold(self._caller())
        return hold.times(self._half) if hold is not None and hold.lease.group.alive else 0

    @property
    def _place(self) -> tuple[object, str, bytes]:
        return self._engine, self._family, lock_name(self.name)

    def _hold(self, owner: Owner) -> HoldCount | None:
        return None if owner.holds is None else owner.holds.get(self._place)

    def _drop(self, owner: Owner) -> None:
        if owner.holds is not None:
            owner.holds.pop(self._place, None)

    def _again(self) -> bool:
        """Whether the caller holds it already, and so holds it once more from now on, without asking the server.

        Raises:
            LockLost: It was lost since; each acquire of it has still to be released.
            LockUnavailable: Whether it is held is not known yet: the caller was interrupted when he went on reading.
            UpgradeRefused: It is held for reading, and wanted for writing.
            LockAlreadyHeld: It is held without a fence, and wanted with one.
        """
        owner = self._caller()
        hold = self._hold(owner)
        if hold is None:
            return False
        if not hold.lease.group.alive:
            self._drop(owner)  # in a forked child: it is the parent's
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
        self._look_at(hold)
        hold.add(self._half, 1)  # last: whoever is interrupted before does not hold it once more
        return True

    def _look_at(self, hold: HoldCount) -> None:
        """Others who look at this object see this hold."""
        self._last, self._lease = hold, hold.lease

    def _take(self, lease: Lease) -> None:
        hold, owner = HoldCount(lease, self._options), lease.owner
        hold.add(self._half, 1)
        self._look_at(hold)
        if owner.holds is None:
            owner.holds = {}
        owner.holds[self._place] = hold

    def _disown(self, leases: Sequence[Lease] | None) -> None:
        for lease in leases or ():
            hold = self._hold(lease.owner)
            if hold is not None and hold.lease is lease:
                self._drop(lease.owner)

    def _to_release(self) -> Lease | None:
        owner = self._caller()
        hold = self._hold(owner)
        if hold is None or not hold.times(self._half):
            return self._to_change("release")  # which says why not
        return self._count_down(owner, hold)

    def _count_down(self, owner: Owner, hold: HoldCount) -> Lease | None:
        """Count one release; return the lease if that is the last one, None if it is held on.

        The last one is counted when it is on its way, and any other behind all that can be interrupted.
        """
        if hold.exclusive + hold.shared == 1:
            if hold.in_flight:
                return hold.lease  # which the engine releases as soon as the server has confirmed it
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
            raise error
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

    def _released(self, lease: Lease) -> None:
        self._count_off(lease)

    def _count_off(self, lease: Lease) -> bool:
        """Count down what is over without asking, wherever this runs; return whether nothing is left."""
        hold = self._hold(lease.owner)
        if hold is None or hold.lease is not lease:
            return True
        hold.add(self._half, -1)
        if hold.over:
            self._drop(lease.owner)
        return hold.over

    # -- what BaseLock asks for ------------------------------------------------------------------------------------

    def _own_lease(self) -> Lease | None:
        hold = self._hold(self._caller())
        return hold.lease if hold is not None and hold.times(self._half) else None

    def _latest_lease(self) -> Lease | None:
        last = self._last
        if last is None or last.over:
            return self._lease
        # It may go on with another lease (a reader's, after a downgrade), or with the other half only.
        return last.lease if last.times(self._half) else None

    def __del__(self) -> None:
        """Nothing: what is held is held by a thread or task, and ends with that, not with this object."""
