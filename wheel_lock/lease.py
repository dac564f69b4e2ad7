"""A lease: one grant of a lock, its states, its local deadline. Pure: time is an argument, and there is no I/O.

The rules:

* A lease is valid while its state is HELD, RENEWING, OVERDUE or EXTENDING *and* the clock is before its local deadline;
  both are evaluated at each question.
* The local deadline is counted from before the command was sent, so it always precedes the server's own expiry. A
  confirmed renewal moves it forward, never back, and only while it has not passed.
* RELEASED, LOST, REFUSED and EXPORTED are final. A thread that sees the deadline pass records the loss in the lease before
  it answers "not held", so that no later confirmation can make the lease look held again.
* RENEWING means exactly one unanswered renewal.
* Only the timer's thread changes a state, except that of a lease on the direct path: its caller does, until that thread
  takes the lease over.
* A lease in a block is HELD, and has its block's deadline. Whatever else happens to it takes it out of the block first.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn, Protocol

from wheel_lock.errors import LockLost, LossReason, quoted
from wheel_lock.observe.events import HeldLock, LostEvent
from wheel_lock.options import DRIFT, MARGIN_S
from wheel_lock.protocol.resp import name_in, split_bulk_strings
from wheel_lock.wheel import WheelEntry


class State(enum.IntEnum):
    """The state of a lease. The valid states come first, so that one comparison separates them."""

    HELD = 0
    RENEWING = 1
    OVERDUE = 2
    EXTENDING = 3
    PENDING = 4
    RELEASING = 5
    RELEASED = 6
    LOST = 7
    REFUSED = 8
    EXPORTED = 9


class Event(enum.IntEnum):
    """An event in the life of a lease. (Integers, because the table is looked up for every grant.)"""

    GRANTED = 0  # the server granted it
    REJECTED = 1  # the server refused it, or its caller waits no longer
    RENEWAL_SENT = 2  # a renewal was sent
    EXTEND = 3  # the caller changes its time-to-live
    CONFIRMED = 4  # the server confirmed the token and the new expiry
    OUTCOME_UNKNOWN = 5  # the outcome of what was sent is not known
    RELEASE = 6  # the caller releases it
    RELEASED = 7  # the release is done
    LOSE = 8  # it ended without a release
    EXPORT = 9  # the caller hands it over to another process


HELD, RENEWING, OVERDUE, EXTENDING = State.HELD, State.RENEWING, State.OVERDUE, State.EXTENDING
_VALID = (HELD, RENEWING, OVERDUE, EXTENDING)
_NEVER = -math.inf  # one object for all leases: an expression would make one for each

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.PENDING, Event.GRANTED): HELD,
    (State.PENDING, Event.REJECTED): State.REFUSED,
    (HELD, Event.RENEWAL_SENT): RENEWING,
    (OVERDUE, Event.RENEWAL_SENT): RENEWING,
    (HELD, Event.OUTCOME_UNKNOWN): OVERDUE,  # due, and there is no connection to renew it on
    (RENEWING, Event.OUTCOME_UNKNOWN): OVERDUE,
    (EXTENDING, Event.OUTCOME_UNKNOWN): OVERDUE,
    (RENEWING, Event.CONFIRMED): HELD,
    (EXTENDING, Event.CONFIRMED): HELD,
    (State.RELEASING, Event.RELEASED): State.RELEASED,
    (State.RELEASING, Event.LOSE): State.LOST,  # the server says that the key was gone before the release
}
for _state in _VALID:
    TRANSITIONS[_state, Event.RELEASE] = State.RELEASING
    TRANSITIONS[_state, Event.LOSE] = State.LOST
    if _state is not EXTENDING:
        TRANSITIONS[_state, Event.EXTEND] = EXTENDING
        TRANSITIONS[_state, Event.EXPORT] = State.EXPORTED

# The same as rows and columns: hashing a pair of enumeration members costs more than the rest of a transition.
_NEXT = [[TRANSITIONS.get((state, event)) for event in Event] for state in State]


class Owner:
    """The thread (or greenlet, or task) that a lease belongs to.

    Attributes:
        holds: The holds of reentrant locks, by lock; None if there are none.
        stands_by: True if it is content to wait for a lock, however long.
    """

    stands_by: ClassVar[bool] = False

    __slots__ = ("__weakref__", "holds")

    def __init__(self) -> None:
        self.holds: dict[Any, Any] | None = None

    @property
    def ended(self) -> bool:
        """True if it has ended; its leases are not renewed any more."""
        return False

    @property
    def heir(self) -> Owner:
        """The owner of its leases from when a caller has them."""
        return self

    @property
    def gone(self) -> bool:
        """True if the thread has ended, so that it will not use the lock again."""
        return self.ended

    def is_same(self, other: Owner) -> bool:
        """Return whether both stand for the same thread or task."""
        return self is other

    def releases_alone(self, lease: Lease) -> bool:
        """Return whether only this owner, which has acquired ``lease``, is to release it."""
        return True

    def lost(self, lease: Lease) -> None:
        """Called when a lease of this owner is lost. On the timer's thread, so it must be quick."""


class ThreadOwner(Owner):
    """An owner whose end is noted here, for looks that cost no call."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        super().__init__()
        self.ended: bool = False


NO_OWNER = ThreadOwner()  # the owner of leases that any thread may use: it never ends


class Limits:
    """Limits of the renewal of one lease. A separate object, because most leases have none."""

    __slots__ = ("hold_until", "max_renewals")

    def __init__(self, max_renewals: int | None, hold_until: float) -> None:
        self.max_renewals: int | None = max_renewals
        self.hold_until: float = hold_until


class Extras:
    """The attributes that few leases have. Leases with equal ones share one object, so it is never changed.

    Attributes:
        on_lost: Called once, on the notifier thread, if the lease is lost.
        call_site: The file and line where it was acquired, if that is tracked.
        fence: Its fence, if one was requested.
        max_expiry: The latest possible expiry of the key after an extension, whatever its outcome.
    """

    __slots__ = ("call_site", "fence", "max_expiry", "on_lost")

    def __init__(
        self,
        on_lost: Callable[[LostEvent], object] | None = None,
        call_site: str | None = None,
        fence: int | None = None,
        max_expiry: float = -math.inf,
    ) -> None:
        self.on_lost: Callable[[LostEvent], object] | None = on_lost
        self.call_site: str | None = call_site
        self.fence: int | None = fence
        self.max_expiry: float = max_expiry


_NO_EXTRAS = Extras()


class Group(Protocol):
    """The part of a renewal group that its leases use."""

    alive: bool  # False in a forked child, which holds nothing
    timeout_s: float

    def due(self, entries: list[Any], now: float) -> None:
        """Renew ``entries``, leases and blocks whose tick has come."""
        ...

    def illegal(self, lease: Lease, event: Event) -> None:
        """End ``lease``: it received an event that its state does not allow, which is a bug."""
        ...


class Together(Protocol):
    """The part of a block that its leases use."""

    own_deadline: float
    owner: Owner
    renewals: int


def local_deadline(sent_at: float, timeout_s: float) -> float:
    """Return the instant until which a lease is valid, in seconds of the timer's clock.

    Args:
        sent_at: When the command that set the expiry was about to be sent, in seconds of the timer's clock.
        timeout_s: The time-to-live that it set, in seconds.
    """
    return sent_at + timeout_s * DRIFT - MARGIN_S


def latest_grant(sent_at: float, timeout_s: float, max_hold_s: float | None, tick_s: float) -> float:
    """Return the instant from which a grant is too late to be held, because its loss could not be reported in time.

    Args:
        sent_at: When the acquire was about to be sent, in seconds of the timer's clock.
        timeout_s: The time-to-live, in seconds.
        max_hold_s: The longest time for which it may be held, in seconds, or None.
        tick_s: The length of a tick, in seconds: a loss is reported two ticks early, at most a quarter of the time.
    """
    lasts_s, end = timeout_s, local_deadline(sent_at, timeout_s)
    if max_hold_s is not None and sent_at + max_hold_s < end:
        lasts_s, end = max_hold_s, sent_at + max_hold_s
    return end - min(2 * tick_s, lasts_s / 4)


class Lease(WheelEntry):
    """One grant of a lock.

    Attributes:
        name: The lock's name as the caller gave it.
        lease_args: Name and token, encoded for the wire; both are read back from it when needed.
        group: Its renewal group.
        state: A :class:`State`.
        block: The block that it is renewed with, or None.
        own_deadline, own_renewals: What ``deadline`` and ``renewals`` are made of, outside of a block.
        acquired_at: When its acquire was sent.
        limits: Its limits, or None.
        loss: The reason of its loss, or None. Never changes once set.
        rows: The rows (rows.py) that it is held as a part of, or None.
        recorded: The entry that it shares with others in the record for a keeper (keeper/record.py), or None.
        owner: The thread or task that it belongs to.
        extras: What few leases have, for a few slots less: the garbage collector walks every slot of every lease.
    """

    size: ClassVar[int] = 1  # as that of a block
    in_blocks: ClassVar[bool] = True  # False if a change of its deadline is to be noticed

    __slots__ = (
        "acquired_at",
        "block",
        "extras",
        "group",
        "lease_args",
        "limits",
        "loss",
        "name",
        "own_deadline",
        "own_renewals",
        "owner",
        "recorded",
        "rows",
        "state",
    )

    def __init__(
        self,
        name: str | bytes,
        lease_args: bytes,
        group: Group,
        owner: Owner = NO_OWNER,
        on_lost: Callable[[LostEvent], object] | None = None,
        call_site: str | None = None,
    ) -> None:
        self.tick = -1
        self.name: str | bytes = name
        self.lease_args: bytes = lease_args
        self.group: Group = group
        self.state: State = State.PENDING
        self.block: Together | None = None
        self.own_deadline: float = _NEVER
        self.acquired_at: float = math.inf
        self.own_renewals: int = 0
        self.limits: Limits | None = None
        self.loss: LossReason | None = None
        self.rows: Any = None
        self.recorded: object = None
        self.owner: Owner = owner
        self.extras: Extras = _NO_EXTRAS if on_lost is None and call_site is None else Extras(on_lost, call_site)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the lease of {quoted(self.name)} cannot be copied or pickled: it belongs to one process, which hands its "
            "lock over with export() and adopt()"
        )

    @property
    def deadline(self) -> float:
        """The local deadline, in seconds of the timer's clock. Never earlier than the truth was when the call began."""
        block = self.block
        return self.own_deadline if block is None else block.own_deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self.own_deadline = deadline

    @property
    def renewals(self) -> int:
        """The number of confirmed renewals."""
        block = self.block
        return self.own_renewals if block is None else self.own_renewals + block.renewals

    @property
    def on_lost(self) -> Callable[[LostEvent], object] | None:
        return self.extras.on_lost

    @on_lost.setter
    def on_lost(self, on_lost: Callable[[LostEvent], object] | None) -> None:
        extras = self.extras
        self.extras = Extras(on_lost, extras.call_site, extras.fence, extras.max_expiry)

    def forget_callback(self) -> None:
        """Let go of ``on_lost`` after a release: the wheel may keep this lease, and then drop a user's object."""
        if self.extras.on_lost is not None:
            self.on_lost = None

    @property
    def call_site(self) -> str | None:
        return self.extras.call_site

    @property
    def fence(self) -> int | None:
        return self.extras.fence

    @fence.setter
    def fence(self, fence: int | None) -> None:
        extras = self.extras
        if fence != extras.fence:
            self.extras = Extras(extras.on_lost, extras.call_site, fence, extras.max_expiry)

    @property
    def max_expiry(self) -> float:
        return self.extras.max_expiry

    @max_expiry.setter
    def max_expiry(self, max_expiry: float) -> None:
        extras = self.extras
        self.extras = Extras(extras.on_lost, extras.call_site, extras.fence, max_expiry)

    @property
    def key(self) -> bytes:
        """The lock's name as the server stores it."""
        return name_in(self.lease_args)

    @property
    def token(self) -> bytes:
        """The token: the secret value of the owner."""
        return split_bulk_strings(self.lease_args)[1]

    def transition(self, event: Event) -> bool:
        """Change the state as the transition table says.

        Returns:
            True if the table has such a transition. If not, which is a bug of the caller, the state is unchanged and the
            group ends this lease.
        """
        after = _NEXT[self.state][event]
        if after is None:
            self.group.illegal(self, event)
            return False
        self.state = after
        return True

    def try_transition(self, event: Event) -> bool:
        """Like :meth:`transition`, but nothing happens if the table has no such transition.

        For a caller on the direct path, which may be late: the timer's thread may have ended its lease meanwhile. One step
        under a GIL, without which there is no direct path, because nothing is called between the two accesses.
        """
        after = _NEXT[self.state][event]
        if after is None:
            return False
        self.state = after
        return True

    def is_valid(self, now: float) -> bool:
        """Return whether the lease is valid at ``now``. Changes nothing."""
        block = self.block
        deadline = self.own_deadline if block is None else block.own_deadline
        return self.loss is None and self.state <= EXTENDING and now < deadline and self.group.alive

    def reset_deadline(self, deadline: float) -> None:
        """Set the deadline after the caller changed the time-to-live; the hold limit still applies."""
        self.deadline = self._capped(deadline)

    def _capped(self, deadline: float) -> float:
        return deadline if self.limits is None else min(deadline, self.limits.hold_until)

    @property
    def at_limit(self) -> bool:
        """True if a limit ends its renewal, so that it expires at its deadline."""
        limits = self.limits
        if limits is None:
            return False
        used_up = limits.max_renewals is not None and self.renewals >= limits.max_renewals
        return used_up or self.deadline >= limits.hold_until

    def lapse_reason(self) -> LossReason:
        """Return the reason of the loss if the deadline passes now."""
        if self.limits is not None:
            if self.deadline >= self.limits.hold_until:
                return LossReason.HOLD_LIMIT
            if self.at_limit:
                return LossReason.RENEWAL_LIMIT
        return LossReason.NOT_CONFIRMED

    def lost_error(self) -> LockLost:
        """Return the error for a caller whose lease has ended without a release."""
        return LockLost(self.name, self.loss or LossReason.NOT_CONFIRMED)

    def record_lapse(self) -> None:
        """Record the loss after the deadline has passed. From any thread. Never overwrites a reason."""
        reason = self.lapse_reason()  # first: the timer's thread may set another one during a call
        if self.loss is None and self.state <= EXTENDING:
            self.loss = reason


def held_lock(lease: Lease, now: float, overdue: bool) -> HeldLock:
    """Return a snapshot of ``lease`` at ``now``."""
    return HeldLock(
        name=lease.name,
        timeout_s=lease.group.timeout_s,
        age_s=now - lease.acquired_at,
        remaining_s=lease.deadline - now,
        renewals=lease.renewals,
        overdue=overdue,
    )


def grant_all(leases: Iterable[Lease], sent_at: float, timeout_s: float, limits: Limits | None) -> bool:
    """Make leases held that the server granted.

    Args:
        leases: Leases of one timeout.
        sent_at: When their acquire was about to be sent.
        timeout_s: The time-to-live that it set, in seconds.
        limits: The limits of their renewal, or None.

    Returns:
        True if all of them were PENDING. Those that were are HELD.
    """
    deadline = local_deadline(sent_at, timeout_s)
    if limits is not None:
        deadline = min(deadline, limits.hold_until)
    pending, held, all_pending = State.PENDING, HELD, True
    for lease in leases:
        if lease.state is pending:
            # Before the state: another thread must not see it held with a deadline that has passed.
            lease.acquired_at = sent_at
            lease.limits = limits
            lease.own_deadline = deadline
            lease.state = held  # faster than a table lookup per lease
        else:
            all_pending = lease.transition(Event.GRANTED)  # illegal in any other state
    return all_pending


def release_all(
    leases: Iterable[Lease],
    now: float,
    note: Callable[[Lease], object],
    cancel: Callable[[Lease], bool],
    end_renewal: Callable[[Lease], object],
    unhold: Callable[[Lease, None], object],
) -> list[Lease]:
    """Begin the release of the leases that are valid at ``now``; return the others. Faster than a transition per lease.

    Args:
        leases: The leases.
        now: The time, in seconds of the timer's clock.
        note: Called with each lease before its renewal is ended.
        cancel: Takes a lease off the wheel; returns whether it was there.
        end_renewal: Ends the renewal of a lease that was not on the wheel.
        unhold: Removes a lease, its first argument, from the held ones.
    """
    releasing = State.RELEASING
    others: list[Lease] = []
    for lease in leases:
        block = lease.block
        deadline = lease.own_deadline if block is None else block.own_deadline
        if lease.state <= EXTENDING and lease.loss is None and now < deadline and lease.group.alive:
            note(lease)
            if block is not None or not cancel(lease):
                end_renewal(lease)
            lease.state = releasing
            unhold(lease, None)
        else:
            others.append(lease)
    return others


def mark_sent(leases: Iterable[Lease]) -> float:
    """Set all of ``leases``, which must be HELD or OVERDUE, to RENEWING: faster than a table lookup per lease.

    Returns:
        The nearest local deadline.
    """
    renewing, nearest = RENEWING, math.inf
    for lease in leases:
        lease.state = renewing
        if lease.own_deadline < nearest:
            nearest = lease.own_deadline
    return nearest


class Confirmation:
    """The result of a batch of confirmed renewals.

    Attributes:
        kept: The renewed leases without limits.
        limited: The renewed leases with limits.
        other: The leases that were not renewed: the reply came at or after their deadline, or they have ended meanwhile.
        time_left_s: The least time, in seconds, that was left until a deadline.
    """

    __slots__ = ("kept", "limited", "other", "time_left_s")

    def __init__(self) -> None:
        self.kept: Sequence[Lease] = ()
        self.limited: list[Lease] = []
        self.other: list[Lease] = []
        self.time_left_s: float = math.inf


def confirm_all(leases: Sequence[Lease], sent_at: float, now: float, timeout_s: float) -> Confirmation:
    """Apply the server's confirmation of a batch of renewals.

    Args:
        leases: Leases of one timeout, renewed by one call.
        sent_at: When that call was about to be sent.
        now: A reading of the clock from after the reply.
        timeout_s: The time-to-live that the call has set, in seconds.
    """
    result = Confirmation()
    deadline = local_deadline(sent_at, timeout_s)
    held, renewing = HELD, RENEWING
    nearest = math.inf
    rest: list[Lease] = []
    # Leases that were confirmed together share the objects of their deadline and of their number of renewals, so what was
    # found out about the last one holds for the next. This loop runs for every renewal, and ends at the first lease that
    # is not plain.
    seen: float | None = None
    counted, count = -1, 0
    entries = iter(leases)
    for lease in entries:
        before = lease.own_deadline
        if lease.state is not renewing or lease.loss is not None or lease.limits is not None:
            rest = [lease, *entries]
            break
        if before is not seen:
            if not now < before < deadline:
                rest = [lease, *entries]
                break
            seen = before
            if before < nearest:
                nearest = before
        lease.state = held
        lease.own_deadline = deadline
        if lease.own_renewals is not counted:
            counted = lease.own_renewals
            count = counted + 1
        lease.own_renewals = count
    if not rest:
        result.kept = leases
        result.time_left_s = nearest - now
        return result
    kept = list(leases[: len(leases) - len(rest)])
    for lease in rest:
        before = lease.own_deadline
        if now < before and lease.state is renewing and lease.loss is None:
            if before < nearest:
                nearest = before
            lease.state = held
            lease.own_renewals += 1
            if lease.limits is None:
                if before < deadline:
                    lease.own_deadline = deadline
                kept.append(lease)
            else:
                lease.own_deadline = max(before, lease._capped(deadline))
                result.limited.append(lease)
        else:
            result.other.append(lease)
    result.kept = kept
    result.time_left_s = nearest - now
    return result
