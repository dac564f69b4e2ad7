"""The two halves of a read-write lock, without the waiting. One hold of an owner counts both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.requests.adopt import Swap
from wheel_lock.errors import ContextClosed, LockAlreadyHeld, WheelLockError, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types import FENCED_WRITE, READ, WRITE
from wheel_lock.locks.base import BaseLock, OnLost, refuse_copy
from wheel_lock.locks.reentrancy import EXCLUSIVE, SHARED, BaseReentrantLock, HoldCount
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import lease_args
from wheel_lock.runtime.interruptions import insist, uninterrupted_start

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

    _engine: Engine
    _half = EXCLUSIVE

    @property
    def _keeps_reading(self) -> bool:
        """True if the caller holds both halves, and its next release ends the writing."""
        hold = self._hold(self._caller())
        return hold is not None and hold.exclusive == 1 and hold.shared > 0 and self._is_valid(hold.lease)

    @uninterrupted_start
    def _released_by_block(self) -> bool:
        """Return whether the end of the caller's block releases it. After a downgrade the reader does."""
        try:
            hold, last = self._hold(self._caller()), self._last  # the last one may be another caller's
            if hold is not None and hold.exclusive:
                return True
            return last is None or last.exclusive > 0 or not last.downgraded
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
        if hold.shared:
            self._only_read(hold)
        elif hold.swap is not None:
            self._engine.post_if_open(hold.swap.give_up)

    @staticmethod
    def _downgraded(hold: HoldCount, lease: Lease, reads: int) -> None:
        """Count a change from writer to reader: ``lease`` is the reader's, ``reads`` the number of reads it adds."""
        hold.lease, hold.exclusive, hold.downgraded = lease, 0, True
        hold.shared += reads

    def _read_on(self, hold: HoldCount, lease: Lease, reader: BaseReadLock) -> None:
        """Count a downgrade whose result is ``reader``. An interruption in here leaves both unchanged."""
        reader._show(hold)
        reader._lease = lease
        self._downgraded(hold, lease, 1)

    def _as_reader(self) -> tuple[Any, ...]:
        """Return the arguments of the reader's class."""
        return self._engine, READ, self.name, self._options, self._on_lost


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
