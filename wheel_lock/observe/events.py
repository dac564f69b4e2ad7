"""Frozen values that tell of single leases."""

from __future__ import annotations

from dataclasses import dataclass

from wheel_lock.errors import LossReason


@dataclass(frozen=True, slots=True)
class LostEvent:
    """A lease has been lost. Handed to ``on_lost`` callbacks, exactly once per lease.

    Attributes:
        name: The lock's name as the caller gave it.
        reason: Why.
        at: When the library knew, in seconds of the timer's clock. The callback may run later, behind slow ones.
        deadline: The lease's local deadline on the same clock; ``at`` lies before it whenever the thread could run.
        renewals: How often the lease had been renewed.
        fence: Its fence, if it had one.
    """

    name: str | bytes
    reason: LossReason
    at: float
    deadline: float
    renewals: int
    fence: int | None


@dataclass(frozen=True, slots=True)
class HeldLock:
    """One held lock, as :meth:`wheel_lock.LockContext.held` shows it.

    Attributes:
        name: The lock's name as the caller gave it.
        timeout_s: Its time-to-live.
        age_s: Seconds since its acquire was sent.
        remaining_s: Seconds until its local deadline.
        renewals: How often it has been renewed.
        overdue: Whether its renewal is not confirmed yet although it should be.
    """

    name: str | bytes
    timeout_s: float
    age_s: float
    remaining_s: float
    renewals: int
    overdue: bool
