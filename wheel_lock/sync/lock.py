"""The face for threads: a lock object whose methods block. It posts work to the engine and waits; nothing else.

A lease belongs to the thread that acquired it, as in redis-py (``thread_local=True``): only that thread may release or
extend it, and it is renewed no more when that thread ends. Any thread may look at it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from wheel_lock.errors import LockNotAcquired, WheelLockError, quoted
from wheel_lock.lease import Lease, Owner
from wheel_lock.locks import operations
from wheel_lock.locks.base import BaseLock, OnLost
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.sync.call import ThreadSide, current_owner, run

__all__ = ["Lock", "OnLost"]


class Lock(ThreadSide, BaseLock):
    """One lock, for threads. Made by :meth:`wheel_lock.LockContext.lock`; a context manager.

    It may be acquired again after a release; each acquire is a new lease. Used from several threads, each thread has a
    lease of its own, and they contend on the server like strangers (unless ``thread_local=False``).
    """

    __slots__ = ()

    def _caller(self) -> Owner:
        return current_owner()

    def _caller_lease(self, verb: str) -> Lease | None:
        return self._own_lease_or_raise(verb, "another thread holds it (see thread_local)")

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock.

        Args:
            blocking: Whether to wait while another holds it; by default as the lock was made.
            blocking_timeout: Longest wait in seconds, connecting included; by default as the lock was made, which by
                default is for ever.
            token: The owner's value to store, 1 to 512 bytes; by default 128 fresh random bits. Whoever knows it can
                release the lock.

        Returns:
            Whether it was acquired.

        Raises:
            LockAlreadyHeld: This thread holds it already through this object.
            LockUnavailable, LockTimeout: The server could not be asked, or did not answer, within the longest wait or the
                context's ``response_timeout``. Should it have granted the lock all the same, it is released.
            LockServerError: The server refused the command itself.
            ValueError: A value is out of range.
        """
        return run(operations.acquire(self, blocking, blocking_timeout, token))

    @uninterrupted_start
    def release(self) -> bool:
        """Release the lock. Once this has returned nothing is sent for its token any more.

        Interrupted (by KeyboardInterrupt, say) it is released all the same, without waiting for the server.

        Returns:
            Whether it is released: always True, but for locks that can be acquired again while they are held.

        Raises:
            LockNotHeld: It was not acquired, or has been released already.
            LockLost: It was lost before; whoever holds it now keeps it.
            WrongThread: Another thread holds it.
            LockUnavailable, LockTimeout, LockServerError: The server could not be asked, did not answer, or refused.
                The lock is not renewed any more and expires within its timeout.
        """
        released = operations.begin_release(
            self
        )  # and not ``operations.release``: this is called as often as nothing else
        if released is None:
            return False
        released.wait()
        released.result()
        return True

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Change the time-to-live once; the next renewal that would prolong it sets it to the timeout again.

        Args:
            additional_time: Seconds to add to the time-to-live, or to replace it with.
            replace_ttl: Whether to replace it.

        Returns:
            True.

        Raises:
            ValueError: The time is not a positive, finite number, or the time-to-live would exceed 1e9 seconds, by the
                remaining time known here or at the server; nothing has changed then.
            LockNotHeld, LockLost, WrongThread, LockUnavailable, LockTimeout, LockServerError: As for ``release``;
                where the outcome is not known the lock is held on as long as was known before.
        """
        return run(operations.extend(self, additional_time, replace_ttl))

    def reacquire(self) -> bool:
        """Set the time-to-live back to the timeout, now. Returns and raises as :meth:`extend` does."""
        return self.extend(self._options.timeout_s, replace_ttl=True)

    def export(self) -> str:
        """Let go of the lock without releasing it, for somebody else to adopt (:meth:`wheel_lock.LockContext.adopt`).

        From here on this object does not hold, renew or release it. Whoever adopts it within what is left of its
        timeout takes it over without a gap; if nobody does, it expires.

        Returns:
            A line of ASCII text that works once. It is a secret: whoever has it can take the lock.

        Raises:
            LockNotHeld, LockLost, WrongThread: As for ``release``.
        """
        return run(operations.export(self))

    # -- what the server says ----------------------------------------------------------------------------------------

    def locked(self) -> bool:
        """Ask the server whether anybody holds the lock."""
        return run(operations.locked(self))

    def owned(self) -> bool:
        """Ask the server whether this lock's own token is stored there."""
        return run(operations.owned(self))

    def __enter__(self) -> Self:
        if not (self._enters_adopted() or self.acquire()):
            raise LockNotAcquired(f"The lock {quoted(self.name)} could not be acquired in time", self.name)
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
            exc_value.add_note(f"and the lock could not be released: {error}")  # the first error is the one to see
