"""The locks beyond the plain one, for threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from wheel_lock.engine.engine import Engine
from wheel_lock.errors import LockNotAcquired, WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks import operations
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.multi import BaseMultiLock
from wheel_lock.locks.read_write import BaseReadLock, BaseReadWriteLock, BaseWriteLock
from wheel_lock.locks.reentrancy import BaseReentrantLock
from wheel_lock.locks.semaphore import BaseSemaphore
from wheel_lock.options import LockOptions
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.sync.call import ThreadSide, run
from wheel_lock.sync.lock import Lock

_OTHERS = "another thread holds it"


class ReentrantLock(BaseReentrantLock, Lock):
    """A lock that the thread which holds it may acquire again. Made by :meth:`wheel_lock.LockContext.reentrant_lock`.

    It is held until it has been released as often as it was acquired, through whatever objects of the same name and
    context. It belongs to its thread, and is renewed no more when that ends.
    """

    __slots__ = ()

    def _number(self) -> int:
        return threading.get_ident()

    def _caller_lease(self, verb: str) -> Lease | None:
        return self._own_lease_or_raise(verb, _OTHERS)

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, once more where this thread holds it already; that costs no round trip.

        Args:
            blocking, blocking_timeout: As for :meth:`wheel_lock.Lock.acquire`.
            token: Nothing but None: these locks make their tokens themselves.

        Returns:
            Whether it was acquired.

        Raises:
            LockLost: This thread has acquired it before and lost it since, and has not released it yet.
            LockUnavailable, LockTimeout, LockServerError, ValueError: As for :meth:`wheel_lock.Lock.acquire`.
        """
        if token is None and self._again():
            return True
        return super().acquire(blocking, blocking_timeout, token)

    @uninterrupted_start
    def release(self) -> bool:
        """Release the lock once.

        Returns:
            True where it is fully released, False where this thread still holds it.

        Raises:
            LockNotHeld, LockLost, WrongThread, LockUnavailable, LockTimeout, LockServerError: As for
                :meth:`wheel_lock.Lock.release`.
        """
        return run(operations.release(self))


class ReadLock(BaseReadLock, ReentrantLock):
    """The half of a read-write lock that is shared. Made by :meth:`ReadWriteLock.read`."""

    __slots__ = ()


class WriteLock(BaseWriteLock, ReentrantLock):
    """The half of a read-write lock that is not. Made by :meth:`ReadWriteLock.write`."""

    __slots__ = ()

    @uninterrupted_start
    def release(self) -> bool:
        """Release it once; where this thread has acquired it for reading, too, it is held on for that, without a gap.

        Returns:
            True where it is fully released for writing, False where this thread still holds it so.
        """
        return run(operations.release_writer(self))

    @uninterrupted_start
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        last = self._last
        if last is None or last.exclusive or not last.downgraded:  # else it has nothing to release any more
            Lock.__exit__(self, exc_type, exc_value, traceback)

    def downgrade(self) -> ReadLock:
        """Hold it for reading instead, without a gap in which another writer could come in.

        A ``with`` block in which that was done releases nothing at its end: what is read on is released by the reader.

        Returns:
            The lock, held for reading.

        Raises:
            WheelLockError: It is held more than once, and so not only by who calls this.
            LockNotHeld, LockLost, WrongThread, LockUnavailable, LockTimeout, LockServerError: As for ``release``.
        """
        return run(operations.downgrade(self, ReadLock))


class ReadWriteLock(BaseReadWriteLock[ReadLock, WriteLock]):
    """A lock that any number of threads hold for reading, or one for writing. Made by :meth:`LockContext.rw_lock`."""

    __slots__ = ()

    _read_class = ReadLock
    _write_class = WriteLock


class Semaphore(BaseSemaphore, Lock):
    """A number of permits, of which each thread holds one. Made by :meth:`wheel_lock.LockContext.semaphore`."""

    __slots__ = ()

    def set_permits(self, permits: int | None) -> None:
        """Set how many permits there are, for all who use this name, whatever they were made with.

        What is held beyond that stays held; nobody is let in until fewer are.

        Args:
            permits: The number, at least 1; None leaves it to each of them again.

        Raises:
            ValueError: The number will not do; before any I/O.
            LockUnavailable, LockTimeout, LockServerError: The server could not be asked, did not answer, or refused.
        """
        run(operations.ask(self, self._setting(permits)))


class MultiLock(ThreadSide, BaseMultiLock[Lock]):
    """Several exclusive locks as one: all of them are held, or none. Made by :meth:`wheel_lock.LockContext.multi_lock`."""

    __slots__ = ()

    def __init__(
        self, engine: Engine, names: Iterable[str | bytes], options: LockOptions, on_lost: OnLost | None
    ) -> None:
        super().__init__(engine, names, options, lambda name: Lock(engine, EXCLUSIVE, name, options, on_lost))

    def acquire(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Acquire all of them, or none; see :meth:`wheel_lock.Lock.acquire`. Nothing is held while it waits."""
        return run(operations.acquire(self, blocking, blocking_timeout))

    @uninterrupted_start
    def release(self) -> None:
        """Release all of them.

        Raises:
            LocksLost: Some had been lost before; the others are released.
            LockNotHeld: One of them is not held; the others are released.
            WrongThread, LockUnavailable, LockTimeout, LockServerError: As for :meth:`wheel_lock.Lock.release`.
        """
        run(operations.release_all(self, self._to_release, self._let_go))

    def __enter__(self) -> Self:
        if not self.acquire():
            raise LockNotAcquired(self._not_acquired())
        return self

    @uninterrupted_start
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except WheelLockError as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"and the locks could not be released: {error}")  # the first error is the one to see
