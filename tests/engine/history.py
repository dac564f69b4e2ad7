"""What happened, and whether it may happen: S1 to S6 as checks on a recorded history.

All moments are of one clock. The server's side is what its keys said and until when; the holders' side is what they
believed and until when; both are half-open intervals, so the checks are sweeps over intervals.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

_SAME = 1e-9  # two readings of one moment


@dataclass
class Span:
    """The server says that the key belongs to the token, from ``start`` to ``end``."""

    name: bytes
    token: bytes
    start: float
    end: float


@dataclass
class Belief:
    """A holder believes in one lease: while it does, the last interval grows."""

    name: bytes
    token: bytes
    fence: int | None = None
    intervals: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Loss:
    """A holder was told of a loss.

    Attributes:
        at: When.
        deadline: The lease's local deadline.
        grace: When its thread, should it not have run just before the deadline, had run again for 20 ms.
    """

    token: bytes
    at: float
    deadline: float
    grace: float


class History:
    """A record, written while things happen and checked at any moment."""

    def __init__(self) -> None:
        self.spans: dict[bytes, list[Span]] = defaultdict(list)  # by token
        self.beliefs: dict[bytes, Belief] = {}  # by token, in order of the grants
        self.losses: list[Loss] = []
        self.untold: list[Loss] = []  # deadlines that passed without a word, looked at now
        self._touches: list[str] = []
        self._let_go: set[bytes] = set()
        self._released: set[bytes] = set()
        self._sent_after: list[bytes] = []

    # -- the server --------------------------------------------------------------------------------------------------

    def granted(self, name: bytes, token: bytes, now: float, end: float) -> None:
        """The server stores the token."""
        self.spans[token].append(Span(name, token, now, end))

    def prolonged(self, token: bytes, end: float) -> None:
        """The server changes the expiry of the key that holds the token, to earlier or later."""
        self.spans[token][-1].end = end

    def deleted(self, token: bytes, now: float) -> None:
        """The server deletes the key that holds the token."""
        self.spans[token][-1].end = now

    def touched(self, what: str, name: bytes, owner: bytes, by: bytes | None) -> None:
        """A command changes a key."""
        if owner != by:
            self._touches.append(f"S4: {what} for {by!r} changed {name!r}, which belongs to {owner!r}")

    # -- the holders -------------------------------------------------------------------------------------------------

    def believes(self, name: bytes, token: bytes, start: float, end: float, fence: int | None = None) -> None:
        """The holder believes from ``start`` to ``end`` unless it learns otherwise."""
        belief = self.beliefs.setdefault(token, Belief(name, token, fence))
        intervals = belief.intervals
        if intervals and intervals[-1][1] >= start - _SAME:
            intervals[-1] = (intervals[-1][0], max(end, intervals[-1][1]))
        else:
            intervals.append((start, end))

    def sent(self, token: bytes) -> None:
        """A command about the token has arrived at a server's socket."""
        if token in self._released:
            self._sent_after.append(token)

    def let_go(self, token: bytes) -> None:
        """The holder releases the token: it believes no more, so nothing it learns from then on can come too late."""
        self._let_go.add(token)

    def released(self, token: bytes) -> None:
        """The release of the token has returned, and everything sent until then has been noted."""
        self._released.add(token)

    # -- the rules ---------------------------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """What broke a rule so far, each beginning with the name of the rule."""
        return [*self._s1(), *self._s2(), *self._s3(), *self._touches, *self._s5(), *self._s6()]

    def _s1(self) -> list[str]:
        found = []
        for belief in self.beliefs.values():
            for start, end in belief.intervals:
                if not any(
                    span.start <= start + _SAME and end <= span.end + _SAME and span.name == belief.name
                    for span in self.spans[belief.token]
                ):
                    said = [(span.start, span.end) for span in self.spans[belief.token]]
                    found.append(f"S1: {belief.name!r} believed {(start, end)}, the server said {said}")
        return found

    def _s2(self) -> list[str]:
        by_name: dict[bytes, list[tuple[float, float, bytes]]] = defaultdict(list)
        for belief in self.beliefs.values():
            by_name[belief.name] += [(start, end, belief.token) for start, end in belief.intervals]
        found = []
        for name, intervals in by_name.items():
            for earlier, later in itertools.pairwise(sorted(intervals)):
                if later[0] < earlier[1] - _SAME and later[2] != earlier[2]:
                    found.append(f"S2: {name!r} was believed by two: {earlier} and {later}")
        return found

    def _s3(self) -> list[str]:
        by_name: dict[bytes, list[Belief]] = defaultdict(list)
        for belief in self.beliefs.values():
            if belief.fence is not None:
                by_name[belief.name].append(belief)
        found = []
        for name, beliefs in by_name.items():
            fences = [belief.fence for belief in beliefs]
            if any(later <= earlier for earlier, later in itertools.pairwise(fences)):  # type: ignore[operator]
                found.append(f"S3: the fences of {name!r} do not grow: {fences}")
        return found

    def _s5(self) -> list[str]:
        found = []
        for token, belief in self.beliefs.items():
            if len(belief.intervals) > 1:
                found.append(f"S5: a lease of {belief.name!r} came back: {belief.intervals}")
            times = sum(loss.token == token for loss in self.losses)
            if times > 1:
                found.append(f"S5: the loss of {belief.name!r} was told {times} times")
        for loss in (*self.losses, *self.untold):
            if loss.token not in self._let_go and loss.at > max(loss.deadline, loss.grace):
                found.append(f"S5: told late: {loss}")
        return found

    def _s6(self) -> list[str]:
        return [f"S6: something was sent for {token!r} after its release returned" for token in self._sent_after]
