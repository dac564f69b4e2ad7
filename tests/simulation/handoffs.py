"""The rule of hold limits that are handed over: they travel as a time of the wall clock, which may be set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.record import Record
    from wheel_lock.errors import InvalidHandoff
    from wheel_lock.lease import Lease

_DRIFT_S = 0.02  # drift of two processes' clocks while a lock may be held, or between two readings of one


@dataclass
class _Exported:
    """What a text carries: the end of the hold limit, how much of it was left, and by how much the wall clock was wrong.

    Of the last two the least and the most, as long as the export took.
    """

    until: float
    left_s: tuple[float, float]
    ahead_s: tuple[float, float]


class Handoffs:
    """Follows the hold limits of exported locks. All moments are the world's."""

    def __init__(self, rules: Record) -> None:
        self._rules = rules
        self._texts: dict[str, _Exported] = {}
        self.tokens: set[bytes] = set()  # of exported leases

    def exported(self, process: Process, lease: Lease, text: str, began: float) -> None:
        """A lock was exported by a call that began then."""
        until = _limit(process, lease)
        self.tokens.add(lease.token)
        self._texts[text] = _Exported(until, (until - self._rules.now, until - began), _ahead_s(process, began))

    def adopted(self, process: Process, lease: Lease, text: str, began: float) -> None:
        """A lock was adopted by a call that began then."""
        exported, limit = self._texts[text], _limit(process, lease)
        self._rules.exercised["handoff"] += exported.until < math.inf
        early, late = self._range(exported, process, began)
        # However far a wall clock was set back: what was left of the limit counts anew from the adoption, at most.
        sent_at = process.clock.moment_of(lease.acquired_at)
        early, late = (min(end, sent_at + left_s) for end, left_s in zip((early, late), exported.left_s, strict=True))
        if not early - _DRIFT_S <= limit <= late + _DRIFT_S:
            self._rules.broken(
                "handoff",
                f"{lease.name!r} may be held until {limit:.3f} by {process.name}, and not until {early:.3f} to {late:.3f}",
            )

    def refused(self, process: Process, text: str, began: float, error: InvalidHandoff) -> None:
        """A text was refused."""
        early, _ = self._range(self._texts[text], process, began)
        if early > self._rules.now + _DRIFT_S and "may not be held any longer" in str(error):
            self._rules.broken("handoff", f"{error}, until {early:.3f}")

    def _range(self, exported: _Exported, process: Process, began: float) -> tuple[float, float]:
        """Return the earliest and the latest end of the hold limit that the wall clocks of the two processes allow."""
        (least, most), (mine_least, mine_most) = exported.ahead_s, _ahead_s(process, began)
        return exported.until + least - mine_most, exported.until + most - mine_least


def _limit(process: Process, lease: Lease) -> float:
    """Return until when a lease may be held."""
    return math.inf if lease.limits is None else process.clock.moment_of(lease.limits.hold_until)


def _ahead_s(process: Process, began: float) -> tuple[float, float]:
    """Return the least and the most by which a wall clock was ahead, from a moment on."""
    before = max(number for number, (since, _) in enumerate(process.wall_ahead_s) if since <= began)
    ahead_s = [ahead_s for _, ahead_s in process.wall_ahead_s[before:]]
    return min(ahead_s), max(ahead_s)
