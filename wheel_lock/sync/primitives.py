"""The lock objects beyond the plain one, for threads."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from wheel_lock.locks import operations
from wheel_lock.locks.multi import BaseMultiLock
from wheel_lock.locks.reentrancy import BaseReadLock, BaseReadWriteLock, BaseReentrantLock, BaseWriteLock
from wheel_lock.locks.semaphore import BaseSemaphore
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.sync.call import run
from wheel_lock.sync.lock import Lock, ReleasedByBlock


class ReentrantLock(BaseReentrantLock, Lock):
    """A lock that the thread which holds it may acquire again. Made by :meth:`wheel_lock.LockContext.reentrant_lock`.

    It is held until it has been released as often as it was acquired, through any objects of the same name and context.
    It belongs to its thread, and its renewal ends with that.
    """

    __slots__ = ()

    _wrong_owner = "another thread holds it"

    def _number(self) -> int:
        return threading.get_ident()

    def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: str | bytes | None = None
    ) -> bool:
        """Acquire the lock, once more if this thread holds it already; that costs no round trip.

        Args:
            blocking, blocking_timeout: As for :meth:`wheel_lock.Lock.acquire`.
            token: Must be None: these locks make their tokens themselves.

        Returns:
            True if it was acquired.

        Raises:
            LockLost: This thread has acquired it before and lost it since, and has not released it yet.
            LockUnavailable, LockTimeout, LockServerError, ValueError: As for :meth:`wheel_lock.Lock.acquire`.
        """
        if token is None and self._acquire_again():
            return True
        return super().acquire(blocking, blocking_timeout, token)


class ReadLock(BaseReadLock, ReentrantLock):
    """The half of a read-write lock for readers. Made by :meth:`ReadWriteLock.read`."""

    __slots__ = ()


class WriteLock(BaseWriteLock, ReentrantLock):
    """The half of a read-write lock for a writer. Made by :meth:`ReadWriteLock.write`."""

    __slots__ = ()

    @uninterrupted_start
    def release(self) -> bool:
        """Release it once. If this thread has acquired it for reading, too, it goes on reading without a gap.

        Returns:
            True if it is fully released for writing, False if this thread still holds it for that.
        """
        return run(operations.release_writer(self))

    @uninterrupted_start
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._released_by_block():
            Lock.__exit__(self, exc_type, exc_value, traceback)

    def downgrade(self) -> ReadLock:
        """Hold it for reading instead, without a gap in which another writer could acquire it.

        A ``with`` block of this lock then releases nothing at its end: the returned reader does.

        Returns:
            The lock, held for reading.

        Raises:
            LockAlreadyHeld: It is held more than once, and so by other code than the caller, too.
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
        """Set the number of permits for all users of this name, whatever their objects were made with.

        Permits that are held beyond it stay held; new ones are granted when fewer are held.

        Args:
            permits: The number, at least 1; with None the number of each object counts again.

        Raises:
            ValueError: The number is out of range; before any I/O.
            LockUnavailable, LockTimeout, LockServerError: The server could not be reached, did not answer, or refused.
        """
        run(operations.ask(self, self._setting(permits)))


class MultiLock(ReleasedByBlock, BaseMultiLock[Lock]):
    """Several exclusive locks as one: all of them are held, or none. Made by :meth:`wheel_lock.LockContext.multi_lock`."""

    __slots__ = ()

    _lock_class = Lock
    _noun = "the locks"

    def acquire(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Acquire all of them, or none; see :meth:`wheel_lock.Lock.acquire`. None is held during the wait."""
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
            raise run(operations.not_acquired(self))
        return self
