"""The lock objects for threads: their methods submit work to the engine, and block until it is done.

A lease belongs to the thread that acquired it, as in redis-py (``thread_local=True``): only that thread may release or
extend it, and its renewal ends with that thread. Any thread may read its properties.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ClassVar, Self

from wheel_lock.errors import LockAlreadyHeld, WheelLockError
from wheel_lock.holder import Holder
from wheel_lock.lease import Lease
from wheel_lock.locks import operations
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.multi import BaseMultiLock
from wheel_lock.locks.reentrancy import BaseReadLock, BaseReadWriteLock, BaseReentrantLock, BaseWriteLock
from wheel_lock.locks.semaphore import BaseSemaphore
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.sync.call import SyncFuture, ThreadSide, current_owner, run


class ReleasedByBlock(ThreadSide):
    """A lock, or several, that the end of a ``with`` block releases."""

    __slots__ = ()

    _noun: ClassVar[str] = "the lock"
    release: Callable[[], object]

    @uninterrupted_start
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.release()
        except WheelLockError as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"and {self._noun} could not be released: {error}")  # the first error is the one to see


class Lock(ReleasedByBlock, BaseLock):
    """One lock, for threads. Made by :meth:`wheel_lock.LockContext.lock`; a context manager.

    It may be acquired again after a release; each acquire is a new lease. Threads that share one object have a lease each,
    and contend at the server as with objects of their own (unless ``thread_local=False``).
    """

    __slots__ = ()

    _wrong_owner: ClassVar[str | None] = "another thread holds it (see thread_local)"

    _caller = staticmethod(current_owner)

    def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: str | bytes | None = None
    ) -> bool:
        """Acquire the lock.

        Args:
            blocking: True to wait while another owner holds it; by default the setting of the lock.
            blocking_timeout: Longest wait in seconds, connecting included; by default the setting of the lock, whose
                default is for ever.
            token: The owner's value to store, 1 to 512 bytes; by default 128 fresh random bits. It is sufficient to release
                the lock.

        Returns:
            True if it was acquired.

        Raises:
            LockAlreadyHeld: This thread holds it already: through this object, or through another one, whose release a wait
                without a limit would never see.
            LockUnavailable, LockTimeout: The server could not be reached, or did not answer, within the longest wait or the
                context's ``response_timeout``. If it has granted the lock nevertheless, the lock is released.
            LockServerError: The server refused the command itself.
            ValueError: A value is out of range.
        """
        granted: SyncFuture[Sequence[Lease] | None] = SyncFuture(self._engine)
        engine = self._engine
        settled = not (engine.interrupted or engine.unawaited)  # first: releases may end meanwhile
        wait = None
        try:
            wait = self._new_waiter(blocking, blocking_timeout, token, granted)
        except LockAlreadyHeld:
            if settled:
                raise
        if wait is None:
            return run(operations.acquire(self, blocking, blocking_timeout, token))
        # The rest is that of ``operations.acquire``, of which the generator costs this hot path 2 us.
        leases: Sequence[Lease] | None = None
        try:
            direct = self._engine.direct
            if direct.exists and (hold := direct.offer(wait, self._options)) is not None:
                wait = hold
                if hold.acquire():
                    leases = (hold.lease,)
                    self._take(hold.lease)
                    return True
            else:
                self._engine.submit(wait.begin)
            granted.wait()
            leases = granted.result()
            if leases is not None:
                self._take(leases[0])
            return leases is not None
        except BaseException:
            self._give_up(wait, leases)
            raise

    @uninterrupted_start
    def release(self) -> bool:
        """Release the lock. After this has returned nothing is sent for its token.

        If it is interrupted (by KeyboardInterrupt, say) the lock is released nevertheless, without waiting for the server.

        Returns:
            True if it is released, False if a lock that can be acquired again is still held by this thread.

        Raises:
            LockNotHeld: It was not acquired, or has been released already.
            LockLost: It was lost before; its present owner keeps it.
            WrongThread: Another thread holds it.
            LockUnavailable, LockTimeout, LockServerError: The server could not be reached, did not answer, or refused.
                The lock is no longer renewed and expires within its timeout.
        """
        released = operations.begin_release(self)  # not ``operations.release``, for the same reason
        if released is None:
            return False
        released.wait()
        released.result()
        return True

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Change the time-to-live once; the next renewal that would prolong it sets it to the timeout again.

        Args:
            additional_time: Seconds to add to the time-to-live, or to replace it with.
            replace_ttl: True to replace it.

        Returns:
            True.

        Raises:
            ValueError: The time is not a positive, finite number, or the time-to-live would exceed 1e9 seconds, by the
                remaining time known here or at the server; nothing has changed then.
            LockNotHeld, LockLost, WrongThread, LockUnavailable, LockTimeout, LockServerError: As for ``release``; if the
                outcome is not known the lock keeps the local deadline it had.
        """
        return run(operations.extend(self, additional_time, replace_ttl))

    def reacquire(self) -> bool:
        """Set the time-to-live back to the timeout, now. Returns and raises as :meth:`extend` does."""
        return self.extend(self._options.timeout_s, replace_ttl=True)

    def export(self) -> str:
        """Give up the lock without releasing it, so that it can be adopted (:meth:`wheel_lock.LockContext.adopt`).

        From here on this object does not hold, renew or release it. An adoption within the rest of its timeout takes it
        over without a gap; without one it expires.

        Returns:
            A line of ASCII text that works once. It is a secret, sufficient to take the lock.

        Raises:
            LockNotHeld, LockLost, WrongThread: As for ``release``.
        """
        return run(operations.export(self))

    def locked(self) -> bool:
        """Query the server; return True if the lock is held by any owner."""
        return run(operations.locked(self))

    def owned(self) -> bool:
        """Query the server; return True if this lock's own token is stored there."""
        return run(operations.owned(self))

    def holder(self) -> Holder | None:
        """Query the server; return the holder of this lock's name, whatever process it is in, or None if it is free.

        Of several holders (readers, permits) it is the one whose lease ends first unless it is renewed.

        Raises:
            WheelLockError: The lock lives on a quorum of masters.
            LockUnavailable, LockTimeout, LockServerError: The server could not be reached, did not answer, or refused.
        """
        return run(operations.holder(self))

    def holders(self) -> tuple[Holder, ...]:
        """Query the server; return all holders, at most 64. Raises as :meth:`holder` does."""
        return run(operations.holders(self))

    def __enter__(self) -> Self:
        if not ((self._adopted is not None and self._enters_adopted()) or self.acquire()):
            raise run(operations.not_acquired(self))
        return self


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
