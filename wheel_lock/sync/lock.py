"""The face for threads: a lock object whose methods block. It posts work to the engine and waits; nothing else.

A lease belongs to the thread that acquired it, as in redis-py (``thread_local=True``): only that thread may release or
extend it, and it is renewed no more when that thread ends. Any thread may look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from wheel_lock.errors import LockNotAcquired, WheelLockError, quoted
from wheel_lock.lease import Lease, Owner
from wheel_lock.locks.base import LockHandle, OnLost
from wheel_lock.options import lock_name
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call
from wheel_lock.runtime.interruptions import insist, uninterrupted_start
from wheel_lock.sync.call import Waiting, behind_releases, current_owner, wait_for

__all__ = ["Lock", "OnLost"]


class Lock(LockHandle):
    """One lock, for threads. Made by :meth:`wheel_lock.LockContext.lock`; a context manager.

    It may be acquired again after a release; each acquire is a new lease. Used from several threads, each thread has a
    lease of its own, and they contend on the server like strangers (unless ``thread_local=False``).
    """

    __slots__ = ()

    def _caller(self) -> Owner:
        return current_owner()

    def _chosen(self, verb: str) -> Lease | None:
        return self._only_mine(verb, "another thread holds it (see thread_local)")

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
        engine = self._engine
        waiting: Waiting[Sequence[Lease] | None] = Waiting(engine)
        acquisition = behind_releases(engine, self._acquisition, blocking, blocking_timeout, token, waiting)
        leases = None
        try:
            engine.submit(acquisition.begin)
            leases = waiting.result()
            if leases is not None:
                self._take(leases[0])
            return leases is not None
        except BaseException:
            # An interruption (KeyboardInterrupt, say) must not leave a grant behind. Harmless if there is none.
            self._give_up(acquisition, leases)
            raise

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
        lease = None
        try:
            lease = self._to_release()
            if lease is None:
                return False
            waiting: Waiting[None] = Waiting(self._engine)
            self._engine.submit(partial(self._engine.release, lease, waiting))
            self._released(lease)
        except WheelLockError:
            raise
        except BaseException:
            insist(self._let_go, lease)
            raise
        waiting.result()
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
        lease, time_ms = self._to_extend(additional_time, replace_ttl)
        wait_for(self._engine, partial(self._engine.extend, lease, time_ms, bool(replace_ttl)))
        return True

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
        lease = self._to_change("export")
        handoff = self._handoff(lease)
        engine = self._server
        waiting: Waiting[None] = Waiting(engine)
        try:
            engine.submit(partial(engine.export, lease, waiting))
            waiting.result()
            return handoff.to_text()
        except BaseException:
            engine.post_if_open(partial(engine.undo_export, lease, waiting))  # nobody has got the text
            raise

    def _adopt(self, handoff: Handoff) -> None:
        engine = self._engine
        waiting: Waiting[bool] = Waiting(engine)
        request = self._adoption(handoff, waiting)
        try:
            engine.submit(request.begin)
            if not waiting.result():
                raise LockNotAcquired(f"The lock {quoted(self.name)} was adopted too late", self.name)
            self._take_adopted(request.lease)
        except BaseException:
            engine.post_if_open(request.give_up)
            raise

    # -- what the server says ----------------------------------------------------------------------------------------

    def locked(self) -> bool:
        """Ask the server whether anybody holds the lock."""
        return self._ask(self._kind.locked(lock_name(self.name)), self._kind.read_locked)

    def owned(self) -> bool:
        """Ask the server whether this lock's own token is stored there."""
        lease = self._seen()
        if lease is None or not lease.group.alive:
            return False
        return self._ask(self._kind.owned(lease), lambda reply: self._kind.read_owned(reply, lease))

    def _ask(self, call: Call, read: Callable[[Reply], bool]) -> bool:
        return bool(wait_for(self._engine, partial(self._engine.query, self.name, call, read)))

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
