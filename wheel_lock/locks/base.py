"""What a lock object is without waiting: its leases, what is known of them here, and what an acquire asks for.

The two faces (sync/lock.py, asyncio.py) add how to wait. A lease belongs to an owner - a thread, or a task - and an object
that several of them use keeps a lease for each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NoReturn

from wheel_lock.engine.future import Future, end_quietly
from wheel_lock.engine.interfaces import LockEngine, Wait, group_of
from wheel_lock.errors import (
    LockAlreadyHeld,
    LockLost,
    LockNotHeld,
    LossReason,
    WheelLockError,
    WrongThread,
    quoted,
)
from wheel_lock.lease import EXTENDING, NOBODY, Group, Lease, Owner, State
from wheel_lock.lock_types import HANDED_OVER
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.caller_token import WITH_CALLER_TOKEN
from wheel_lock.locks.callers import Side
from wheel_lock.observe.events import LostEvent
from wheel_lock.options import LockOptions, extension_ms, lock_name, lock_token, seconds
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import lease_args
from wheel_lock.runtime.interruptions import insist, uninterrupted_start
from wheel_lock.runtime.native import RLock

# For moments, where several threads share one object. Reentrant, because a signal's handler may acquire a lock anywhere.
_taking = RLock()


def _after_fork() -> None:
    global _taking
    _taking = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

OnLost = Callable[[LostEvent], object]

_LOST = (State.LOST, State.REFUSED)  # the latter where it was to take the place of one that was lost


class BaseLock(Side):
    """What the lock objects of both faces have in common: all that needs no waiting.

    Attributes:
        name: The lock's name, as the caller gave it.
        in_bulk: Whether it may be released together with others.
    """

    in_bulk: ClassVar[bool] = True

    __slots__ = (
        "__weakref__",
        "_adopted",
        "_engine",
        "_group",
        "_lease",
        "_lock_type",
        "_on_lost",
        "_options",
        "_others",
        "name",
    )

    def __init__(
        self, engine: LockEngine, lock_type: LockType, name: str | bytes, options: LockOptions, on_lost: OnLost | None
    ) -> None:
        self._lease: Lease | None = None
        self._others: dict[Owner, Lease] | None = None
        self._adopted: Lease | None = None
        self._group: Group | None = None
        self._engine = engine
        self._lock_type = lock_type
        self._options = options
        self._on_lost = on_lost
        self.name = name

    # -- what the faces are made of ----------------------------------------------------------------------------------

    def _caller(self) -> Owner:
        """Who calls: the owner that a lease which is acquired now would have."""
        raise NotImplementedError

    def _new_owner(self) -> Owner:
        """The owner of a lease that is acquired now."""
        return self._caller() if self._options.thread_local else NOBODY

    def _loss_callback(self) -> OnLost | None:
        """What is to be called, on the notifier thread, when a lease that is acquired now is lost."""
        return self._on_lost

    def _new_waiter(
        self,
        blocking: bool | None,
        blocking_timeout: float | None,
        token: str | bytes | None,
        future: Future[Sequence[Lease] | None],
    ) -> Wait:
        """Return the wait for this lock, ready to begin; what is wrong with it is raised before any I/O."""
        options, engine = self._options, self._engine
        blocking, until = time_limit(engine, options, blocking, blocking_timeout)
        self._refuse_again()
        lease = self._new_lease(lock_name(self.name), token)
        return engine.new_wait(options, (lease,), token is not None, blocking, until, future)

    def _refuse_again(self) -> None:
        """Raise LockAlreadyHeld where the caller holds it already."""
        latest = self._lease
        if latest is not None and (latest.state <= EXTENDING or self._others is not None):
            mine = self._own_lease()
            if mine is not None and self._is_valid(mine):
                raise LockAlreadyHeld(f"The lock {quoted(self.name)} is held already, and is not reentrant", self.name)

    def _new_lease(self, key: bytes, token: str | bytes | None = None) -> Lease:
        """Return a lease for the calling owner, to be acquired."""
        engine, options, group = self._engine, self._options, self._group
        if token is not None or group is None or not group.alive or not engine.stable:
            lock_type = self._lock_type if token is None else self._type_with_caller_token()
            group = engine.group(key, lock_type, options)
            if token is None:
                self._group = group
        wire = lease_args(key, self._new_token() if token is None else lock_token(token))
        place = call_site() if engine.options.track_acquisitions else None
        return Lease(self.name, wire, group, self._new_owner(), self._loss_callback(), place)

    def _new_token(self) -> bytes:
        return self._lock_type.token()

    def _type_with_caller_token(self) -> LockType:
        lock_type = WITH_CALLER_TOKEN.get(self._lock_type) if self._lock_type.unique_tokens else self._lock_type
        if lock_type is None:
            raise ValueError(
                f"a lock of the kind {self._lock_type.name!r} makes its tokens itself, so token must be None"
            )
        return lock_type

    def _owned_query(self, lease: Lease) -> Callable[[Future[bool]], object]:
        """Return the work that asks whether the token of ``lease`` is stored."""
        lock_type = self._lock_type
        return partial(
            self._engine.query, self.name, lock_type.owned(lease), partial(lock_type.parse_owned, lease=lease)
        )

    def _handoff(self, lease: Lease) -> Handoff:
        """Return what an adopter must know of ``lease``, or raise where its kind cannot be handed over."""
        if self._lock_type.name not in HANDED_OVER:
            raise WheelLockError(f"A lock of the kind {self._lock_type.name!r} cannot be handed over", self.name)
        if not group_of(lease).lock_type.unique_tokens:
            raise WheelLockError(
                f"The lock {quoted(self.name)} was acquired with a token that others may have, too, and so a copy of the "
                "text could take it from them: it cannot be handed over",
                self.name,
            )
        options, limits = self._options, lease.limits
        left = None
        if options.max_renewals is not None:
            left = max(options.max_renewals - lease.renewals, 0)
        hold_until = None
        if limits is not None and options.max_hold_s is not None:
            hold_until = time.time() + limits.hold_until - self._engine.timer.clock.now()
        return Handoff(
            self.name,
            lease.token,
            self._lock_type.name,
            lease.fence,
            options.timeout_s,
            options.renew_every_s,
            left,
            hold_until,
        )

    def _take_granted(self, leases: Sequence[Lease]) -> None:
        """Keep what an acquire was granted."""
        self._take(leases[0])

    def _take(self, lease: Lease) -> None:
        """Keep the new lease; an owner that lost an earlier one through this object keeps its truth about that."""
        with _taking:
            self._keep(lease)

    def _disown(self, leases: Sequence[Lease] | None) -> None:
        """The caller was interrupted when it had been granted ``leases``, and perhaps had taken them; they are released."""
        if leases and self._lease is leases[0]:
            self._lease = None

    @uninterrupted_start
    def _give_up(self, wait: Wait, leases: Sequence[Lease] | None) -> None:
        """The caller was interrupted while acquiring: undo what was granted, or may have been."""
        try:
            self._disown(leases)
        finally:
            insist(self._engine.post_if_open, wait.give_up)

    def _let_go(self, lease: Lease | None) -> None:
        """The caller was interrupted while releasing: have it done without waiting; None where it had not begun."""
        lease = lease or self._own_lease()
        if lease is not None:
            self._engine.release_unawaited(partial(self._engine.release, lease))
            self._disown([lease])

    def _keep(self, lease: Lease) -> None:
        old = self._lease
        if old is not None and old.owner is not lease.owner and self._options.thread_local:
            others = {} if self._others is None else self._others
            others = {owner: kept for owner, kept in others.items() if not owner.gone and owner is not lease.owner}
            if not old.owner.gone and old.state is not State.RELEASED:
                others[old.owner] = old
            self._others = others or None
        self._lease = lease

    def _take_adopted(self, lease: Lease) -> None:
        """Keep a lease that was adopted: the next ``with`` statement finds the lock acquired already."""
        self._take(lease)
        self._adopted = lease

    def _enters_adopted(self) -> bool:
        """Whether a ``with`` statement is the first since the lock was adopted; raise LockLost if it is lost by now."""
        adopted = self._adopted
        if adopted is None or adopted is not self._lease_to_enter():
            return False
        self._adopted = None
        if adopted.state in (State.RELEASED, State.EXPORTED):
            return False
        self.raise_if_lost()
        return True

    def _own_lease(self) -> Lease | None:
        """The lease of the calling owner."""
        lease = self._lease
        if lease is None or not self._options.thread_local:
            return lease
        owner = self._caller()
        if lease.owner is owner:
            return lease
        return None if self._others is None else self._others.get(owner)

    def _own_or_latest(self) -> Lease | None:
        """The lease that a look is about: the caller's own, else the latest."""
        return self._own_lease() or self._latest_lease()

    def _latest_lease(self) -> Lease | None:
        """The lease that was acquired last through this object, by whomever."""
        return self._lease

    def _lease_to_enter(self) -> Lease | None:
        """The lease with which the caller may enter a ``with`` block."""
        return self._own_lease()

    def _caller_lease(self, verb: str) -> Lease | None:
        """The lease that the caller means, whatever has become of it; an error where it is somebody else's."""
        raise NotImplementedError

    def _own_lease_or_raise(self, verb: str, others: str) -> Lease | None:
        """The caller's own lease, whatever has become of it; WrongThread where another caller holds one."""
        mine, latest = self._own_lease(), self._latest_lease()
        if mine is None and latest is not None and self._is_valid(latest):
            raise WrongThread(f"Cannot {verb} the lock {quoted(self.name)}: {others}", self.name)
        return mine

    def _to_release(self) -> Lease | None:
        """The lease that the caller releases, or None where it is held on; an error before any I/O."""
        return self._to_change("release")

    def _released(self, lease: Lease) -> None:
        """The release of a lease is on its way."""

    def _to_change(self, verb: str) -> Lease:
        """The lease that the caller may change, or an error before any I/O."""
        return self._changeable(self._caller_lease(verb), verb)

    def _to_extend(self, additional_time: float, replace_ttl: bool) -> tuple[Lease, int]:
        """Return the lease that the caller extends, and the time in milliseconds, or raise before any I/O."""
        extension_ms(additional_time, 0.0)  # an invalid time is refused first, whether or not a lease is held
        lease = self._to_change("extend")
        left_s = 0.0 if replace_ttl else max(lease.deadline - self._engine.timer.clock.now(), 0.0)
        return lease, extension_ms(additional_time, left_s)

    def _changeable(self, lease: Lease | None, verb: str) -> Lease:
        """The lease, if it can be changed."""
        if lease is not None:
            if lease.state in _LOST or not lease.group.alive:
                raise self._lost(lease)
            if lease.state <= EXTENDING:
                return lease
            if lease.state is State.EXPORTED:
                raise LockNotHeld(f"Cannot {verb} the lock {quoted(self.name)}: it was handed over", self.name)
        raise LockNotHeld(f"Cannot {verb} the lock {quoted(self.name)}: it is not held", self.name)

    def _is_valid(self, lease: Lease) -> bool:
        granted = lease.state is not State.PENDING  # asked first: a grant that comes meanwhile is no lapse
        if lease.is_valid(self._engine.timer.clock.now()):
            return True
        if granted and lease.state <= EXTENDING and lease.group.alive and lease.loss is None:
            lease.record_lapse()  # written down first, so that nobody who looks later sees it held again
            self._engine.post_if_open(lambda: self._engine.lapse_seen(lease))
        return False

    # -- what is known here, without asking --------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether the holder may believe in it *now*: not lost, and the clock is before the local deadline."""
        lease = self._own_or_latest()
        return lease is not None and self._is_valid(lease)

    def _loss(self, lease: Lease) -> LossReason | None:
        if not lease.group.alive and lease.state <= EXTENDING:
            return lease.loss or LossReason.FORKED
        self._is_valid(lease)
        return lease.loss

    def _lost(self, lease: Lease) -> LockLost:
        """Return what to raise for a lease that is lost."""
        end_quietly(self._engine.exiting)
        return LockLost(self.name, self._loss(lease) or LossReason.NOT_CONFIRMED)

    @property
    def lost(self) -> LossReason | None:
        """Why it was lost, or None."""
        lease = self._own_or_latest()
        return None if lease is None else self._loss(lease)

    def raise_if_lost(self) -> None:
        """Raise :class:`LockLost` if it was lost, :class:`LockNotHeld` if it is not held for another reason."""
        lease = self._own_or_latest()
        if lease is not None and self._loss(lease) is not None:
            raise self._lost(lease)
        if lease is None or not self._is_valid(lease):
            raise LockNotHeld(f"The lock {quoted(self.name)} is not held", self.name)

    def remaining(self) -> float:
        """Seconds until the local deadline; 0 when it is not held."""
        lease = self._own_or_latest()
        if lease is None or not self._is_valid(lease):
            return 0.0
        return max(lease.deadline - self._engine.timer.clock.now(), 0.0)

    @property
    def token(self) -> bytes | None:
        """The token of the current lease, None when it is not held."""
        lease = self._own_or_latest()
        return lease.token if lease is not None and lease.state <= EXTENDING and lease.group.alive else None

    @property
    def fence(self) -> int | None:
        """The fence of the latest lease, where ``fencing`` was asked for. Kept after the end of the lease."""
        lease = self._own_or_latest()
        return None if lease is None else lease.fence

    @property
    def renewals(self) -> int:
        """How often the latest lease has been renewed."""
        lease = self._own_or_latest()
        return 0 if lease is None else lease.renewals

    @property
    def timeout(self) -> float:
        """Its time-to-live in seconds."""
        return self._options.timeout_s

    def __repr__(self) -> str:
        lease = self._own_or_latest()
        if lease is None:
            state = "not acquired"
        elif self._is_valid(lease):
            state = f"held, {self.remaining():.3f} s remaining"
        else:
            reason = self._loss(lease)
            state = f"lost: {reason}" if reason else "not held"
        return f"<{type(self).__name__} {quoted(self.name)} {state}>"

    def __reduce__(self) -> NoReturn:
        # Not even a shallow copy: two objects would have one lease, and the first to be collected would abandon it.
        raise TypeError(
            f"{self!r} cannot be copied or pickled: make another lock of that name, in another process with a context of "
            "its own, or hand this one over with export() and adopt()"
        )

    def __del__(self) -> None:
        # Collected while held: there is nobody left to release it. May run anywhere, so it takes no lock.
        leases = [getattr(self, "_lease", None), *(getattr(self, "_others", None) or {}).values()]
        for lease in leases:
            if lease is not None and lease.state <= EXTENDING and lease.group.alive and not sys.is_finalizing():
                self._engine.post_if_open(partial(self._engine.abandon, lease))


def checked_callback(on_lost: OnLost | None) -> OnLost | None:
    """Return ``on_lost``, or raise ValueError where it cannot be called."""
    if on_lost is not None and not callable(on_lost):
        raise ValueError(f"on_lost must be callable, not {on_lost!r}")
    return on_lost


def call_site() -> str:
    """Return file and line of the nearest caller outside the library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("wheel_lock."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def time_limit(
    engine: LockEngine, options: LockOptions, blocking: bool | None, blocking_timeout: float | None
) -> tuple[bool, float | None]:
    """Return whether to wait, and until when, in seconds of the timer's clock; None for ever."""
    if blocking is None:
        blocking = options.blocking
    if blocking_timeout is None:
        blocking_timeout = options.blocking_timeout_s
    elif blocking:
        blocking_timeout = seconds("blocking_timeout", blocking_timeout)
    if not blocking or blocking_timeout is None:
        return blocking, None
    return blocking_timeout > 0, engine.timer.clock.now() + blocking_timeout
