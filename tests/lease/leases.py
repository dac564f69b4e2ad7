"""Leases for tests, and, written down a second time, what may follow what."""

from __future__ import annotations

from wheel_lock.lease import Event, Lease, Limits, grant_all
from wheel_lock.protocol.resp import lease_args

_ENDS = {"RELEASE": "RELEASING", "LOSE": "LOST"}
LEGAL: dict[str, dict[str, str]] = {
    "PENDING": {"GRANTED": "HELD", "REJECTED": "REFUSED"},
    "HELD": {
        "EXPORT": "EXPORTED",
        "RENEWAL_SENT": "RENEWING",
        "OUTCOME_UNKNOWN": "OVERDUE",
        "EXTEND": "EXTENDING",
        **_ENDS,
    },
    "RENEWING": {
        "EXPORT": "EXPORTED",
        "CONFIRMED": "HELD",
        "OUTCOME_UNKNOWN": "OVERDUE",
        "EXTEND": "EXTENDING",
        **_ENDS,
    },
    "OVERDUE": {"EXPORT": "EXPORTED", "RENEWAL_SENT": "RENEWING", "EXTEND": "EXTENDING", **_ENDS},
    "EXTENDING": {"CONFIRMED": "HELD", "OUTCOME_UNKNOWN": "OVERDUE", **_ENDS},
    "RELEASING": {"RELEASED": "RELEASED", "LOSE": "LOST"},
}


class Terms:
    """What leases share, with nothing behind it."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.alive = True
        self.timeout_s = timeout_s

    def due(self, entries: list[Lease], now: float) -> None:
        raise AssertionError("nothing here is on a wheel")

    def illegal(self, lease: Lease, event: Event) -> None:
        raise RuntimeError(f"a lease that is {lease.state.name} cannot take {event.name}")


def new_lease(terms: Terms | None = None) -> Lease:
    return Lease("order:42", lease_args(b"order:42", b"token"), terms or Terms())


def granted(sent_at: float, *, limits: Limits | None = None, terms: Terms | None = None) -> Lease:
    """A lease that is held, of 10 s unless the terms say otherwise."""
    lease = new_lease(terms)
    grant_all([lease], sent_at, lease.group.timeout_s, limits)
    return lease
