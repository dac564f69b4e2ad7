"""Frozen values about single leases."""

from __future__ import annotations

from dataclasses import dataclass

from wheel_lock.errors import LossReason


@dataclass(frozen=True, slots=True)
class LostEvent:
    """The loss of a lease. Passed to its ``on_lost`` callback, once per lease.

    Attributes:
        name: The lock's name as the caller gave it.
        reason: The reason of the loss.
        at: When the loss was detected, in seconds of the timer's clock. The callback may run later, behind slow ones.
        deadline: The lease's local deadline on the same clock; ``at`` precedes it unless the thread was kept from running.
        renewals: The number of confirmed renewals.
        fence: The lease's fence; None if it had none.
    """

    name: str | bytes
    reason: LossReason
    at: float
    deadline: float
    renewals: int
    fence: int | None


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A held lock; see :meth:`wheel_lock.LockContext.held`.

    Attributes:
        name: The lock's name as the caller gave it.
        timeout_s: Its time-to-live in seconds.
        age_s: Seconds since its acquire was sent.
        remaining_s: Seconds until its local deadline.
        renewals: The number of confirmed renewals.
        overdue: Whether a renewal is due and not confirmed.
    """

    name: str | bytes
    timeout_s: float
    age_s: float
    remaining_s: float
    renewals: int
    overdue: bool
