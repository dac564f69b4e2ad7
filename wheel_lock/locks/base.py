"""The base class of lock objects: their leases, the local state of those, and the parameters of requests; no waiting.

A lease belongs to an owner, a thread or a task. An object that several owners use keeps one lease for each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar, NoReturn

from wheel_lock.diagnostics.tracing import trace
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, end_quietly
from wheel_lock.engine.interfaces import Wait, group_of
from wheel_lock.errors import LockAlreadyHeld, LockLost, LockNotHeld, LossReason, WheelLockError, WrongThread, quoted
from wheel_lock.exclusion import Lock, exclusively
from wheel_lock.forks import in_forked_child
from wheel_lock.lease import EXTENDING, NO_OWNER, Group, Lease, Owner, State
from wheel_lock.lock_types import HANDED_OVER
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import WITH_CALLER_TOKEN
from wheel_lock.lock_types.holders import LockState
from wheel_lock.locks.callers import CallerFuture, Side
from wheel_lock.observe.events import LostEvent
from wheel_lock.options import LockOptions, checked_wait, lock_name, lock_token, plain_name, seconds
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import lease_args
from wheel_lock.runtime.interruptions import finaliser, insist, uninterrupted_start
from wheel_lock.runtime.native import RLock

# Held briefly, where several threads share one object. Reentrant because a signal's handler may acquire a lock anywhere.
_taking = RLock()


@in_forked_child
def _after_fork() -> None:
    global _taking
    _taking = RLock()


def taking() -> Lock:
    """Return the lock for what several threads do with one object. Reentrant; it is held briefly."""
    return _taking


OnLost = Callable[[LostEvent], object]

_GIVEN_UP = (State.RELEASED, State.EXPORTED)
_LOST = (State.LOST, State.REFUSED)  # REFUSED: the lease that was to replace one that was lost


class BaseLock(Side):
    """A lock object without its waiting.

    Attributes:
        in_bulk: True if ``release_many`` accepts it.
    """

    in_bulk: ClassVar[bool] = True
    _is_traced: ClassVar[bool] = True  # by the spans of its methods
    _lease_class: ClassVar[Callable[..., Lease]] = Lease
    _wrong_owner: ClassVar[str | None] = None
    """The reason in WrongThread's message; None if any caller may change a lease that another caller has acquired."""

    __slots__ = (
        "__weakref__",
        "_adopted",
        "_engine",
        "_group",
        "_key",
        "_lease",
        "_lock_type",
        "_name",
        "_on_lost",
        "_options",
        "_others",
    )

    def __init__(
        self,
        engine: Engine,
        lock_type: LockType,
        name: str | bytes,
        options: LockOptions,
        on_lost: OnLost | None,
        key: bytes | None = None,
    ) -> None:
        """``key`` is what ``lock_name`` has returned, if the caller has checked the name already."""
        self._lease: Lease | None = None
        self._others: dict[Owner, Lease] | None = None
        self._adopted: dict[Lease, None] | None = None  # a dict, whose pop is atomic
        self._group: Group | None = None
        self._key = b"" if key is None else key  # made when it is needed: bulk calls make very many objects
        self._name: str | bytes = name if type(name) is str else plain_name(name)
        self._engine = engine
        self._lock_type = lock_type
        self._options = options
        self._on_lost = on_lost
        if engine.spans is not None and self._is_traced:
            trace(self)

    @property
    def name(self) -> str | bytes:
        """The lock's name, without the prefix of the context. One that is set later holds from the next acquire on.

        A reentrant or read-write lock has it at once, and releases the hold of that name: set it while none is held.
        """
        return self._name

    @name.setter
    def name(self, name: str | bytes) -> None:
        self._key = lock_name(name, self._engine.options.prefix)
        self._name = plain_name(name)

    def _encoded_name(self) -> bytes:
        """Return the name as it is sent, with the prefix of the context."""
        if not self._key:
            self._key = lock_name(self._name, self._engine.options.prefix)
        return self._key

    @property
    def _kind(self) -> str:
        return self._lock_type.name

    def _caller(self) -> Owner:
        raise NotImplementedError

    def _new_owner(self) -> Owner:
        return self._caller() if self._options.thread_local else NO_OWNER

    def _loss_callback(self) -> OnLost | None:
        """Return the callback of a new lease; if the lease is lost, the notifier thread calls it."""
        return self._on_lost

    def _new_waiter(
        self,
        blocking: bool | None,
        limit: float | None,
        token: str | bytes | None,
        future: CallerFuture[Sequence[Lease] | None],
    ) -> Wait:
        """Return a waiter for this lock, ready to begin. Invalid parameters raise here, before any I/O."""
        options, engine = self._options, self._engine
        if blocking is None and limit is None and options.blocking_timeout_s is None:
            blocking, until = options.blocking, None
        else:
            blocking, until = time_limit(engine, options, blocking, limit)
            future.until = until
        latest = self._lease
        if latest is not None and (latest.state <= EXTENDING or self._others is not None):
            self._check_not_held()
        key = self._key or self._encoded_name()
        lease = self._new_lease(key, token)
        return engine.new_wait(options, lease, key, token is not None, blocking, until, future)

    def _check_not_held(self) -> None:
        latest = self._lease
        if latest is not None and (latest.state <= EXTENDING or self._others is not None):
            mine = self._own_lease() if self._options.thread_local else latest
            if mine is not None and self._is_valid(mine):
                raise LockAlreadyHeld(f"The lock {quoted(self.name)} is held already, and is not reentrant", self.name)

    def _new_lease(self, key: bytes, token: str | bytes | None = None) -> Lease:
        engine, options, group = self._engine, self._options, self._group
        if token is not None or group is None or not group.alive or not engine.keeps_groups:
            lock_type = self._lock_type if token is None else self._type_with_caller_token()
            group = engine.group(key, lock_type, options)
            if token is None:
                self._group = group
        wire = lease_args(key, self._new_token() if token is None else lock_token(token))
        on_lost = None if self._on_lost is None else self._loss_callback()
        place = call_site() if engine.options.track_acquisitions else None
        return self._lease_class(self.name, wire, group, self._new_owner(), on_lost, place)

    def _new_token(self) -> bytes:
        return self._lock_type.token(self._engine.token_head)

    def _type_with_caller_token(self) -> LockType:
        lock_type = WITH_CALLER_TOKEN.get(self._lock_type) if self._lock_type.unique_tokens else self._lock_type
        if lock_type is None:
            raise ValueError(
                f"a lock of the kind {self._lock_type.name!r} makes its tokens itself, so token must be None"
            )
        return lock_type

    def _look(self) -> Callable[[Future[LockState]], object]:
        """Return the query for what the server has under the lock's name, to be run on the timer's thread."""
        return partial(self._engine.look, self.name)

    def _handoff(self, lease: Lease) -> Handoff:
        """Return the data from which ``lease`` can be adopted. Raises WheelLockError if its type cannot be handed over."""
        if self._lock_type.name not in HANDED_OVER:
            raise WheelLockError(f"A lock of the kind {self._lock_type.name!r} cannot be handed over", self.name)
        if not group_of(lease).lock_type.unique_tokens:
            raise WheelLockError(
                f"The lock {quoted(self.name)} was acquired with a token that others may have, too, and so a copy of the "
                "text could take it from them: it cannot be handed over",
                self.name,
            )
        options, limits = self._options, lease.limits
        timeout_s, every_s = options.timeout_s, options.renew_every_s
        left = None if options.max_renewals is None else max(options.max_renewals - lease.renewals, 0)
        hold_until = hold_left = None
        if limits is not None and options.max_hold_s is not None:
            hold_left = limits.hold_until - self._engine.timer.clock.now()
            hold_until = time.time() + hold_left
        kind, fence = self._lock_type.name, lease.fence
        return Handoff(lease.name, lease.token, kind, fence, timeout_s, every_s, left, hold_until, hold_left)

    def _take_granted(self, leases: Sequence[Lease]) -> None:
        self._take(leases[0])

    def _take(self, lease: Lease) -> None:
        """Keep a new lease. The leases of other owners are kept, too, so that each owner sees the loss of its own."""
        exclusively(_taking, self._keep, lease)

    def _disown(self, leases: Sequence[Lease] | None) -> None:
        """Forget ``leases``, which an interrupted caller may have kept already and which are released."""
        others = self._others
        left = next(reversed(others.values()), None) if others else None  # else their owners would not find them
        if leases and self._lease is leases[0]:
            self._lease = left

    @uninterrupted_start
    def _give_up(self, wait: Wait, leases: Sequence[Lease] | None) -> None:
        """Undo an interrupted acquire, with all that was granted, or may have been."""
        try:
            self._disown(leases)
        finally:
            insist(self._engine.post_if_open, wait.give_up)

    def _let_go(self, lease: Lease | None) -> None:
        """Complete an interrupted release without waiting. ``lease`` is None if the release had not begun."""
        lease = lease or self._own_lease()
        if lease is not None:
            self._engine.release_unawaited(partial(self._engine.release, lease))
            self._disown([lease])

    def _keep(self, lease: Lease) -> None:
        old, others = self._lease, self._others or {}
        if not self._options.thread_local:
            # Anybody may release it, but who has lost it is to see that, and not the lease of who acquires it next.
            others = {by: kept for by, kept in others.items() if not by.gone and kept.state not in _GIVEN_UP}
            self._others = {**others, self._caller(): lease}
        elif old is not None and old.owner is not lease.owner:
            others = {owner: kept for owner, kept in others.items() if not owner.gone and owner is not lease.owner}
            if not old.owner.gone and old.state is not State.RELEASED:
                others[old.owner] = old
            self._others = others or None
        self._lease = lease

    def _take_adopted(self, lease: Lease) -> None:
        """Keep an adopted lease: the next ``with`` statement enters with it instead of acquiring."""
        self._take(lease)
        self._adopted = {lease: None}

    def _enters_adopted(self) -> bool:
        """Consume the adoption, if any, at a ``with`` statement; return True if that enters with the adopted lease.

        Raises:
            LockLost: The adopted lease is lost.
        """
        adopted = self._adopted
        if adopted is None:
            return False
        lease = self._own_or_latest() if self._wrong_owner is None else self._own_lease()
        if lease is None or adopted.pop(lease, False) is False:  # one of several threads that share the object gets it
            return False
        if lease.state in _GIVEN_UP:
            return False
        self.raise_if_lost()
        return True

    def _own_lease(self) -> Lease | None:
        """Return the caller's own lease in any state, or None. Without ``thread_local`` the latest is everybody's."""
        lease = self._lease  # read before _others, which _keep writes first
        others = self._others
        if lease is None or (others is None and not self._options.thread_local):
            return lease
        owner = self._caller()
        own = None if others is None else others.get(owner)
        if self._options.thread_local:
            return lease if lease.owner is owner else own
        return lease if own is None or own.state in _GIVEN_UP else own

    def _own_or_latest(self) -> Lease | None:
        """Return the lease that properties describe: the caller's own, else the latest of any owner; or None."""
        lease = self._lease  # read before _others, which _keep writes first
        return lease if self._others is None else self._own_lease() or lease

    def _to_change(self, verb: str) -> Lease:
        """Return the lease that the caller may change.

        Raises:
            LockNotHeld, LockLost, WrongThread: There is none; before any I/O.
        """
        if self._wrong_owner is None:
            return self._changeable(self._own_or_latest(), verb)
        lease = self._own_lease()
        if lease is None and (other := self._own_or_latest()) is not None and self._is_valid(other):
            raise WrongThread(f"Cannot {verb} the lock {quoted(self.name)}: {self._wrong_owner}", self.name)
        return self._changeable(lease, verb)

    def _changeable(self, lease: Lease | None, verb: str) -> Lease:
        """Return ``lease`` if its state allows changes. Raises LockNotHeld or LockLost otherwise."""
        if lease is not None:
            if lease.state in _LOST or not lease.group.alive:
                raise self._lost(lease)
            if lease.state <= EXTENDING:
                return lease
            if lease.state is State.EXPORTED:
                raise LockNotHeld(f"Cannot {verb} the lock {quoted(self.name)}: it was handed over", self.name)
        raise LockNotHeld(f"Cannot {verb} the lock {quoted(self.name)}: it is not held", self.name)

    def _to_release(self) -> Lease | None:
        """Return the lease to release, or None if the caller still holds it after this release. Raises before any I/O."""
        lease = self._lease
        if lease is None or self._others is not None or lease.state > EXTENDING or not lease.group.alive:
            return self._to_change("release")
        # As _to_change() says: usually the lease is the caller's, or anyone may release it.
        anyone = self._wrong_owner is None or not self._options.thread_local
        return lease if anyone or lease.owner is self._caller() else self._to_change("release")

    def _count_off(self, lease: Lease) -> bool:
        """Count one release of ``lease``, where acquires are counted; return True if it was the last one."""
        return True

    def _is_valid(self, lease: Lease) -> bool:
        granted = lease.state is not State.PENDING  # read first: a grant in between is no lapse
        if lease.is_valid(self._engine.timer.clock.now()):
            return True
        if granted and lease.state <= EXTENDING and lease.group.alive and lease.loss is None:
            lease.record_lapse()  # first, so that no later look sees the lock held again
            self._engine.post_if_open(partial(self._engine.lapse_seen, lease))  # without this object, and its callback
        return False

    @property
    def is_held(self) -> bool:
        """True if the lock is held *now*: it is not lost, and the clock is before the local deadline."""
        lease = self._own_or_latest()
        return lease is not None and self._is_valid(lease)

    def _loss(self, lease: Lease) -> LossReason | None:
        if not lease.group.alive and lease.state <= EXTENDING:
            return lease.loss or LossReason.FORKED
        self._is_valid(lease)
        return lease.loss

    def _lost(self, lease: Lease) -> LockLost:
        end_quietly(self._engine.exiting)
        return LockLost(self.name, self._loss(lease) or LossReason.NOT_CONFIRMED)

    @property
    def lost(self) -> LossReason | None:
        """The reason of the loss, or None if the lock was not lost."""
        lease = self._own_or_latest()
        return None if lease is None else self._loss(lease)

    def raise_if_lost(self) -> None:
        """Raise :class:`LockLost` if the lock was lost, :class:`LockNotHeld` if it is not held for another reason."""
        lease = self._own_or_latest()
        if lease is not None and self._loss(lease) is not None:
            raise self._lost(lease)
        if lease is None or not self._is_valid(lease):
            raise LockNotHeld(f"The lock {quoted(self.name)} is not held", self.name)

    def remaining(self) -> float:
        """Return the seconds until the local deadline; 0 if the lock is not held."""
        lease = self._own_or_latest()
        if lease is None or not self._is_valid(lease):
            return 0.0
        return max(lease.deadline - self._engine.timer.clock.now(), 0.0)

    @property
    def token(self) -> bytes | None:
        """The token of the current lease; None if the lock is not held."""
        lease = self._own_or_latest()
        return lease.token if lease is not None and lease.state <= EXTENDING and lease.group.alive else None

    @property
    def fence(self) -> int | None:
        """The fence of the latest lease, also after its end; None without ``fencing``."""
        lease = self._own_or_latest()
        return None if lease is None else lease.fence

    @property
    def renewals(self) -> int:
        """The number of renewals of the latest lease."""
        lease = self._own_or_latest()
        return 0 if lease is None else lease.renewals

    @property
    def timeout(self) -> float:
        """The lock's time-to-live in seconds."""
        return self._options.timeout_s

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name != "in_bulk"]  # the library's own question

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
        refuse_copy(self)

    @finaliser
    def __del__(self) -> None:
        # A lock that is collected while held can no longer be released by its owner. May run anywhere: takes no lock.
        try:
            lease, others = self._lease, self._others
        except AttributeError:
            return  # its making was interrupted
        if others is None and (lease is None or lease.state > EXTENDING):
            return  # as usual
        for held in (lease, *(others or {}).values()):
            if held is not None and held.state <= EXTENDING and held.group.alive and not sys.is_finalizing():
                self._engine.post_if_open(partial(self._engine.abandon, held))


def refuse_copy(lock: object) -> NoReturn:
    """Raise TypeError, because a lock object belongs to one process, and its lease to one object."""
    raise TypeError(
        f"{lock!r} cannot be copied or pickled: make another lock of that name, in another process with a context of "
        "its own, or hand this one over with export() and adopt()"
    )


def call_site() -> str:
    """Return the file and line of the nearest caller outside the library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("wheel_lock."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def time_limit(
    engine: Engine, options: LockOptions, blocking: bool | None, blocking_timeout: float | None
) -> tuple[bool, float | None]:
    """Return True if an acquire waits, and its deadline in seconds of the timer's clock, None if it has none."""
    if blocking is None:
        blocking = options.blocking
    else:
        checked_wait(blocking, blocking_timeout)
    if blocking_timeout is None:
        blocking_timeout = options.blocking_timeout_s
    elif blocking:
        blocking_timeout = seconds("blocking_timeout", blocking_timeout)
    if not blocking or blocking_timeout is None:
        return blocking, None
    return blocking_timeout > 0, engine.timer.clock.now() + blocking_timeout
