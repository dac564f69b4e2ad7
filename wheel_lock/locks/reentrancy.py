"""Hold counts: how often one thread, or task, holds a lock that it can acquire again.

A hold belongs to its owner and to the lock's name, not to a lock object: two objects of one name, in one thread, are one
lock. It is counted in the process, and one lease at the server stands for all of it. That is safe because only the owner
counts, and because each acquire checks the lease first: with a lost lease nothing more is granted. A count at the server
would cost a round trip, and a command that is sent twice could change it.

One hold of an owner counts both halves of a read-write lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.requests.adopt import Swap
from wheel_lock.errors import ContextClosed, LockAlreadyHeld, LockUnavailable, UpgradeRefused, WheelLockError, quoted
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.lock_types import FENCED_WRITE, READ, WRITE
from wheel_lock.locks.base import BaseLock, OnLost, refuse_copy
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import lease_args
from wheel_lock.runtime.interruptions import insist, uninterrupted_start

EXCLUSIVE = "exclusive"
SHARED = "shared"


class HoldCount:
    """The hold of one owner on one lock.

    Attributes:
        lease: The lease that the server has granted.
        options: The options of the outermost acquire.
        counts: The number of acquires by half: EXCLUSIVE as a writer, or of a reentrant lock; SHARED as a reader.
        downgraded: True if it was held as a writer, and is no longer.
        swap: The request that replaces the writer's lease with a reader's, or None.
    """

    __slots__ = ("counts", "downgraded", "lease", "options", "swap")

    def __init__(self, lease: Lease, options: LockOptions) -> None:
        self.lease: Lease = lease
        self.options: LockOptions = options
        self.counts: dict[str, int] = {EXCLUSIVE: 0, SHARED: 0}
        self.downgraded: bool = False
        self.swap: Swap | None = None

    @property
    def over(self) -> bool:
        """True if the lock was released as often as it was acquired."""
        return not any(self.counts.values())

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

    def _number(self) -> int:
        """Return the number of the calling thread or task, which the token shows to users of the server."""
        raise NotImplementedError

    def _new_token(self) -> bytes:
        return super()._new_token() + b":%d" % self._number()

    @property
    def count(self) -> int:
        """The number of acquires that the caller has not released yet."""
        hold = self._hold(self._caller())
        return hold.counts[self._half] if hold is not None and hold.lease.group.alive else 0

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
        if self._half is EXCLUSIVE and hold.counts[EXCLUSIVE] == 0:
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
        hold.counts[self._half] += 1  # last: an interruption before leaves the count unchanged
        return True

    def _show(self, hold: HoldCount) -> None:
        """Make this object show ``hold`` to other threads and tasks."""
        self._last, self._lease = hold, hold.lease

    def _take(self, lease: Lease) -> None:
        hold, owner = HoldCount(lease, self._options), lease.owner
        hold.counts[self._half] += 1
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
        if hold is None or not hold.counts[self._half]:
            return self._to_change("release")  # which raises the reason
        if sum(hold.counts.values()) == 1:  # the last one: it is counted by ``_count_off`` when it has begun
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
        hold.counts[self._half] -= 1  # behind all that can be interrupted
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame, which would keep it in a cycle
        return None

    def _let_go(self, lease: Lease | None) -> None:
        if lease is None:
            hold = self._hold(self._caller())
            if hold is None or not hold.counts[self._half]:
                return
            if sum(hold.counts.values()) > 1:
                hold.counts[self._half] -= 1
                return
            lease = hold.lease
        super()._let_go(lease)

    def _count_off(self, lease: Lease) -> bool:
        hold = self._hold(lease.owner)
        if hold is None or hold.lease is not lease:
            return True
        hold.counts[self._half] -= 1
        if hold.over:
            self._drop(lease.owner)
        return hold.over

    def _own_lease(self) -> Lease | None:
        hold = self._hold(self._caller())
        return hold.lease if hold is not None and hold.counts[self._half] else None

    def _own_or_latest(self) -> Lease | None:
        own = self._own_lease()
        last = self._last
        if own is not None or last is None or last.over:
            return own or self._lease
        # The hold may go on with another lease (a reader's, after a downgrade), or with the other half only.
        return last.lease if last.counts[self._half] else None

    def __del__(self) -> None:
        """Keep the lease: it ends with the thread or task that holds it, not with this object."""


R = TypeVar("R", bound=BaseLock)
W = TypeVar("W", bound=BaseLock)


class _Half(BaseReentrantLock):
    """One half of a read-write lock."""

    __slots__ = ()

    _family = "read-write"

    def _new_token(self) -> bytes:
        return self._lock_type.token(self._engine.token_head)  # a member of a sorted set, whose form the scripts know


class BaseReadLock(_Half):
    """The half for readers. A caller that holds the lock for writing may acquire it for reading, too."""

    __slots__ = ()

    _half = SHARED


class BaseWriteLock(_Half):
    """The half for one writer."""

    __slots__ = ()

    _half = EXCLUSIVE

    @property
    def _keeps_reading(self) -> bool:
        """True if the caller holds both halves, and its next release ends the writing."""
        hold = self._hold(self._caller())
        return (
            hold is not None and hold.counts[EXCLUSIVE] == 1 and hold.counts[SHARED] > 0 and self._is_valid(hold.lease)
        )

    @uninterrupted_start
    def _released_by_block(self) -> bool:
        """Return whether the end of the caller's block releases it. After a downgrade the reader does."""
        try:
            hold, last = self._hold(self._caller()), self._last  # the last one may be another caller's
            if hold is not None and hold.counts[EXCLUSIVE]:
                return True
            return last is None or last.counts[EXCLUSIVE] > 0 or not last.downgraded
        except BaseException:
            insist(self._let_go, None)
            raise

    def _check_downgrade(self) -> None:
        self._to_change("downgrade")
        if self.count > 1:
            raise LockAlreadyHeld(
                f"The lock {quoted(self.name)} is held for writing {self.count} times, not only by who downgrades it",
                self.name,
            )

    def _new_swap(self, future: Future[None]) -> tuple[HoldCount, Swap]:
        """Return the caller's hold, and the request that replaces the writer's lease with a reader's on the same terms."""
        writer = self._to_change("downgrade")
        hold = self._hold(self._caller())
        assert hold is not None
        key, options = self._encoded_name(), hold.options
        group = self._engine.group(key, READ, options)
        wire = lease_args(key, READ.token(self._engine.token_head))
        reader = Lease(self.name, wire, group, writer.owner, writer.on_lost, writer.call_site)
        hold.swap = swap = Swap(self._engine.leases, writer, reader, options, future)
        return hold, swap

    @uninterrupted_start
    def _stop_writing(self, hold: HoldCount, swap: Swap) -> None:
        """Begin to go on as a reader: from here on the reader's lease is held, whatever interrupts the caller."""
        try:
            self._engine.submit(swap.begin)
            self._downgraded(hold, swap.new, 0)
        except WheelLockError:
            raise
        except BaseException:
            insist(self._only_read, hold)
            raise

    def _only_read(self, hold: HoldCount) -> None:
        """Complete an interrupted change from writer to reader, without waiting."""
        swap = hold.swap
        assert swap is not None
        lease = swap.new
        try:
            self._engine.submit(swap.begin)
        except ContextClosed:
            if not swap.begun:
                lease = swap.lease  # which is lost, and has the reason
        self._downgraded(hold, lease, 0)

    def _let_go(self, lease: Lease | None) -> None:
        if lease is None and self._keeps_reading:
            hold, _ = self._new_swap(Future(noop))
            insist(self._only_read, hold)
        else:
            super()._let_go(lease)

    def _undo_downgrade(self, hold: HoldCount) -> None:
        """Undo an interrupted downgrade, whose reader the caller has not received; earlier acquires for reading remain."""
        if hold.counts[SHARED]:
            self._only_read(hold)
        elif hold.swap is not None:
            self._engine.post_if_open(hold.swap.give_up)

    @staticmethod
    def _downgraded(hold: HoldCount, lease: Lease, reads: int) -> None:
        """Count a change from writer to reader: ``lease`` is the reader's, ``reads`` the number of reads it adds."""
        hold.lease, hold.counts[EXCLUSIVE], hold.downgraded = lease, 0, True
        hold.counts[SHARED] += reads

    def _read_on(self, hold: HoldCount, lease: Lease, reader: BaseReadLock) -> None:
        """Count a downgrade whose result is ``reader``. An interruption in here leaves both unchanged."""
        reader._show(hold)
        reader._lease = lease
        self._downgraded(hold, lease, 1)


class BaseReadWriteLock(Generic[R, W]):
    """A read-write lock: two lock objects of one name."""

    __slots__ = ("_engine", "_on_lost", "_options", "name")

    _read_class: ClassVar[Any]
    _write_class: ClassVar[Any]

    if not TYPE_CHECKING:  # a type checker refuses the block by itself

        def __enter__(self) -> NoReturn:
            raise TypeError(f"{self!r} has two halves: enter its .read() or its .write()")

        __exit__ = __aenter__ = __aexit__ = __enter__

    def __init__(self, engine: Engine, name: str | bytes, options: LockOptions, on_lost: OnLost | None) -> None:
        self._engine = engine
        self._options = options
        self._on_lost = on_lost
        self.name: str | bytes = name

    def read(self) -> R:
        """Return the half for readers: held together with other readers, and never with a writer."""
        lock: R = self._read_class(self._engine, READ, self.name, self._options, self._on_lost)
        return lock

    def write(self) -> W:
        """Return the half for a writer: held by one owner, while no other writes or reads."""
        lock_type = FENCED_WRITE if self._options.fencing else WRITE
        lock: W = self._write_class(self._engine, lock_type, self.name, self._options, self._on_lost)
        return lock

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {quoted(self.name)}>"
