"""The face for threads: a lock object whose methods block. It posts work to the engine and waits; nothing else.

A lease belongs to the thread that acquired it, as in redis-py (``thread_local=True``): only that thread may release or
extend it, and it is renewed no more when that thread ends. Any thread may look at it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from wheel_lock.caller import calling_place, current_owner, new_token, wait_for
from wheel_lock.engine.acquiring import Acquire
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.kind import Kind
from wheel_lock.engine.operation import Operation
from wheel_lock.errors import (
    LockAlreadyHeld,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LossReason,
    WheelLockError,
    WrongThread,
    quoted,
)
from wheel_lock.lease import EXTENDING, NOBODY, Lease, Owner, State
from wheel_lock.observe.events import LostEvent
from wheel_lock.options import LockOptions, lock_name, lock_token, seconds
from wheel_lock.protocol.resp import MalformedReply, Reply, command, fragment
from wheel_lock.protocol.scripts import Call

OnLost = Callable[[LostEvent], object]


class Lock:
    """One lock, for threads. Made by :meth:`wheel_lock.LockContext.lock`; a context manager.

    It may be acquired again after a release; each acquire is a new lease. Used from several threads, each thread has a
    lease of its own, and they contend on the server like strangers (unless ``thread_local=False``).
    """

    __slots__ = ("__weakref__", "_engine", "_kind", "_lease", "_on_lost", "_options", "_others", "name")

    def __init__(
        self, engine: Engine, kind: Kind, name: str | bytes, options: LockOptions, on_lost: OnLost | None
    ) -> None:
        self._lease: Lease | None = None
        self._others: dict[Owner, Lease] | None = None
        self._engine = engine
        self._kind = kind
        self._options = options
        self._on_lost = on_lost
        self.name = name

    # -- acquire and release -----------------------------------------------------------------------------------------

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock.

        Args:
            blocking: Whether to wait while another holds it; by default as the lock was made.
            blocking_timeout: Longest wait in seconds; by default as the lock was made, which by default is for ever.
            token: The owner's value to store, 1 to 512 bytes; by default 128 fresh random bits. Whoever knows it can
                release the lock.

        Returns:
            Whether it was acquired.

        Raises:
            LockAlreadyHeld: This thread holds it already through this object.
            LockUnavailable, LockTimeout: The server could not be asked, or did not answer. Should it have granted the
                lock all the same, it is released.
            LockServerError: The server refused the command itself.
            ValueError: A value is out of range.
        """
        options = self._options
        if blocking is None:
            blocking = options.blocking
        if blocking_timeout is None:
            blocking_timeout = options.blocking_timeout_s
        elif blocking:
            seconds("blocking_timeout", blocking_timeout)
        owner = current_owner() if options.thread_local else NOBODY
        mine = self._mine()
        if mine is not None and self._believed(mine):
            raise LockAlreadyHeld(f"The lock {quoted(self.name)} is held already, and is not reentrant", self.name)
        name = lock_name(self.name)
        chosen = None if token is None else lock_token(token)
        clock = self._engine.timer.clock
        until = None if blocking_timeout is None else clock.now() + blocking_timeout
        attempts = 0
        # A token for each attempt: what cleans up after one that ended in the dark must not meet the next one's grant.
        while not self._try(fragment(name, chosen or new_token()), owner):
            attempts += 1
            if not blocking or attempts == options.max_attempts:
                return False
            pause_s = options.retry_every_s
            if until is not None:
                remaining_s = until - clock.now()
                if remaining_s <= 0:
                    return False
                pause_s = min(pause_s, remaining_s)  # so that the last attempt comes when the time is up
            self._pause(pause_s)
        return True

    def _try(self, wire: bytes, owner: Owner) -> bool:
        options, engine = self._options, self._engine
        group = engine.renewer.group(self._kind, options.timeout_s, options.timeout_ms, options.renew_every_s)
        place = calling_place() if engine.options.track_acquisitions else None
        lease = Lease(self.name, wire, group, owner, self._on_lost, place)
        request: Acquire | None = None

        def begin(operation: Operation[bool]) -> Callable[[], object]:
            nonlocal request
            request = Acquire(engine, lease, options, operation)
            return request.begin

        try:
            granted = wait_for(engine, begin)
            if granted:
                self._take(lease)
            return granted
        except BaseException:
            # An interruption (KeyboardInterrupt, say) must not leave a grant behind. Harmless if there is none.
            if request is not None:
                engine.tell(request.give_up)
            raise

    def _pause(self, duration_s: float) -> None:
        engine = self._engine
        wait_for(engine, lambda operation: lambda: engine.pause(duration_s, operation))

    def _take(self, lease: Lease) -> None:
        """Keep the new lease; a thread that lost an earlier one through this object keeps its truth about that."""
        old = self._lease
        if old is not None and old.owner is not lease.owner:
            others = {} if self._others is None else self._others
            others = {owner: kept for owner, kept in others.items() if not owner.ended and owner is not lease.owner}
            if not old.owner.ended and old.state is not State.RELEASED:
                others[old.owner] = old
            self._others = others or None
        self._lease = lease

    def _mine(self) -> Lease | None:
        """The lease of the calling thread."""
        lease = self._lease
        if lease is None or not self._options.thread_local:
            return lease
        owner = current_owner()
        if lease.owner is owner:
            return lease
        return None if self._others is None else self._others.get(owner)

    def _seen(self) -> Lease | None:
        """The lease that a look is about: the thread's own, else the latest."""
        return self._mine() or self._lease

    def _to_change(self, verb: str) -> Lease:
        """The lease that the calling thread may change, or an error before any I/O."""
        lease = self._mine()
        if lease is None:
            other = self._lease
            if other is not None and self._believed(other):
                raise WrongThread(
                    f"Cannot {verb} the lock {quoted(self.name)}: another thread holds it (see thread_local)",
                    self.name,
                )
        elif lease.state is State.LOST or not lease.group.alive:
            raise LockLost(self.name, self._loss(lease) or LossReason.NOT_CONFIRMED)
        elif lease.state <= EXTENDING:
            return lease
        raise LockNotHeld(f"Cannot {verb} the lock {quoted(self.name)}: it is not held", self.name)

    def release(self) -> None:
        """Release the lock. Once this has returned nothing is sent for its token any more.

        Raises:
            LockNotHeld: It was not acquired, or has been released already.
            LockLost: It was lost before; whoever holds it now keeps it.
            WrongThread: Another thread holds it.
            LockUnavailable, LockTimeout, LockServerError: The server could not be asked, did not answer, or refused.
                The lock is not renewed any more and expires within its timeout.
        """
        lease = self._to_change("release")
        engine = self._engine
        wait_for(engine, lambda operation: lambda: engine.release(lease, operation))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Change the time-to-live once; the next renewal that would prolong it sets it to the timeout again.

        Args:
            additional_time: Seconds to add to the time-to-live, or to replace it with.
            replace_ttl: Whether to replace it.

        Returns:
            True.

        Raises:
            ValueError: The time is not a positive, finite number.
            LockNotHeld, LockLost, WrongThread, LockUnavailable, LockTimeout, LockServerError: As for ``release``;
                where the outcome is not known the lock is held on as long as was known before.
        """
        time_ms = max(1, round(seconds("additional_time", additional_time, above=0.0) * 1000))
        lease = self._to_change("extend")
        engine = self._engine
        wait_for(engine, lambda operation: lambda: engine.extend(lease, time_ms, bool(replace_ttl), operation))
        return True

    def reacquire(self) -> bool:
        """Set the time-to-live back to the timeout, now. Returns and raises as :meth:`extend` does."""
        return self.extend(self._options.timeout_s, replace_ttl=True)

    # -- what the server says ----------------------------------------------------------------------------------------

    def locked(self) -> bool:
        """Ask the server whether anybody holds the lock."""
        return self._ask(b"EXISTS", lambda reply: _integer(reply) > 0)

    def owned(self) -> bool:
        """Ask the server whether this lock's own token is stored there."""
        lease = self._seen()
        return lease is not None and lease.group.alive and self._ask(b"GET", lambda reply: _text(reply) == lease.token)

    def _ask(self, verb: bytes, read: Callable[[Reply], bool]) -> bool:
        engine = self._engine
        call = Call(None, 0, 0, command(verb, lock_name(self.name)))

        def begin(operation: Operation[Any]) -> Callable[[], object]:
            return lambda: engine.query(self.name, call, read, operation)

        return bool(wait_for(engine, begin))

    # -- what is known here, without asking --------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether the holder may believe in it *now*: not lost, and the clock is before the local deadline."""
        lease = self._seen()
        return lease is not None and self._believed(lease)

    def _believed(self, lease: Lease) -> bool:
        if lease.believed(self._engine.timer.clock.now()):
            return True
        if lease.state <= EXTENDING and lease.group.alive and lease.loss is None:
            lease.see_lapse()  # written down first, so that nobody who looks later sees it held again
            self._engine.tell(lambda: self._engine.lapse_seen(lease))
        return False

    def _loss(self, lease: Lease) -> LossReason | None:
        if not lease.group.alive and lease.state <= EXTENDING:
            return lease.loss or LossReason.FORKED
        self._believed(lease)
        return lease.loss

    @property
    def lost(self) -> LossReason | None:
        """Why it was lost, or None."""
        lease = self._seen()
        return None if lease is None else self._loss(lease)

    def raise_if_lost(self) -> None:
        """Raise :class:`LockLost` if it was lost, :class:`LockNotHeld` if it is not held for another reason."""
        lease = self._seen()
        reason = None if lease is None else self._loss(lease)
        if reason is not None:
            raise LockLost(self.name, reason)
        if lease is None or not self._believed(lease):
            raise LockNotHeld(f"The lock {quoted(self.name)} is not held", self.name)

    def remaining(self) -> float:
        """Seconds until the local deadline; 0 when it is not held."""
        lease = self._seen()
        if lease is None or not self._believed(lease):
            return 0.0
        return max(lease.deadline - self._engine.timer.clock.now(), 0.0)

    @property
    def token(self) -> bytes | None:
        """The token of the current lease, None when it is not held."""
        lease = self._seen()
        return lease.token if lease is not None and lease.state <= EXTENDING and lease.group.alive else None

    @property
    def fence(self) -> int | None:
        """The fence of the latest lease, where ``fencing`` was asked for. Kept after the end of the lease."""
        lease = self._seen()
        return None if lease is None else lease.fence

    @property
    def renewals(self) -> int:
        """How often the latest lease has been renewed."""
        lease = self._seen()
        return 0 if lease is None else lease.renewals

    @property
    def timeout(self) -> float:
        """Its time-to-live in seconds."""
        return self._options.timeout_s

    def __enter__(self) -> Lock:
        if not self.acquire():
            raise LockNotAcquired(f"The lock {quoted(self.name)} could not be acquired in time", self.name)
        return self

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

    def __repr__(self) -> str:
        lease = self._seen()
        if lease is None:
            state = "not acquired"
        elif self._believed(lease):
            state = f"held, {self.remaining():.3f} s remaining"
        else:
            reason = self._loss(lease)
            state = f"lost: {reason}" if reason else "not held"
        return f"<{type(self).__name__} {quoted(self.name)} {state}>"

    def __del__(self) -> None:
        # Collected while held: there is nobody left to release it. May run anywhere, so it takes no lock.
        lease = getattr(self, "_lease", None)
        if lease is not None and lease.state <= EXTENDING and lease.group.alive and not sys.is_finalizing():
            engine = self._engine
            engine.tell(lambda: engine.abandon(lease))


def _integer(reply: Reply) -> int:
    if type(reply) is not int:
        raise MalformedReply(f"expected an integer, got {reply!r:.40}")
    return reply


def _text(reply: Reply) -> bytes | None:
    if reply is not None and type(reply) is not bytes:
        raise MalformedReply(f"expected a string or nothing, got {reply!r:.40}")
    return reply
