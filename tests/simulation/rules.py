"""What must never happen. The world knows the truth, because it runs the servers: beliefs of holders against spans of keys.

Most rules check while things happen; here are those that check all beliefs at the end.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.simulation.holder_rules import HolderRules
from tests.simulation.record import MAJORITY, SAME_S, Belief, Span
from wheel_lock.errors import text_of
from wheel_lock.lease import EXTENDING, Lease, State
from wheel_lock.quorum.lease import QuorumLease, VoteLease


class Rules(HolderRules):
    """All rules."""

    def check(self) -> None:
        """Check what can be checked at the end only."""
        for process, leases in self._active.items():
            local = process.clock.now()
            for belief in leases.values():
                if belief.open:
                    belief.until = min(belief.until, self.now)
                    lease = belief.lease
                    if lease.state <= EXTENDING and local > self._report_by(process, lease.deadline):
                        self.broken("S5", f"the loss of {belief.name!r} was never reported")
        for belief in self._beliefs:
            self._check_belief(belief)
        for lease, holding, terms in self._holdings:
            self._check_limits(lease, terms)
            if lease.state is State.LOST and holding.process.alive and not holding.reports[lease.name]:
                self.broken("S5", f"the loss of {lease.name!r} was not reported")
        for holding in self._with_losses:
            strange = [name for name in holding.reports if name not in holding.got]
            if strange and not holding.interrupted and holding.process.alive:
                self.broken("S5", f"the loss of {strange} was reported to a caller that never got it")
        by_name: dict[tuple[str, bytes], list[Belief]] = defaultdict(list)
        for belief in self._beliefs:
            by_name[belief.host, belief.name].append(belief)
        for (_, name), beliefs in by_name.items():
            self._check_overlaps(name, beliefs)
            self._check_fences(name, beliefs)

    def _check_limits(self, lease: Lease, terms: dict[str, Any]) -> None:
        max_renewals = 0 if terms.get("renew") is False else terms.get("max_renewals")
        max_hold = terms.get("max_hold")
        if isinstance(lease, QuorumLease):
            return  # whose votes may be requested again
        if max_renewals is not None and lease.renewals > max_renewals:
            self.broken("limits", f"{lease.name!r} was renewed {lease.renewals} times, and not {max_renewals}")
        if max_hold is not None and lease.deadline > lease.acquired_at + max_hold + SAME_S:
            held_s = lease.deadline - lease.acquired_at
            self.broken("limits", f"{lease.name!r} was held for {held_s:.3f} s, and not {max_hold}")

    def _check_belief(self, belief: Belief) -> None:
        if belief.host == MAJORITY:
            return
        self.exercised["S1"] += 1
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        begins = [span for span in spans if span.start <= belief.start + SAME_S]
        if any(span.tampered for span in begins):
            begins = spans  # the key of a server whose clock goes forward and back has gone, and is there again
        if not any(belief.until <= span.promised + SAME_S for span in begins):
            said = [(round(span.start, 4), round(span.promised, 4)) for span in spans]
            begun, until = round(belief.start, 4), round(belief.until, 4)
            self.broken(
                "S1", f"{belief.process.name} believed in {belief.name!r} {begun, until}, the server said {said}"
            )

    def _check_overlaps(self, name: bytes, beliefs: list[Belief]) -> None:
        permits = self.permits.get(name, 0)
        rule = "permits" if permits else "readers" if any(each.kind == "read" for each in beliefs) else "S2"
        moments = sorted(
            itertools.chain.from_iterable(
                ((each.start + SAME_S, 1, number), (each.until, 0, number)) for number, each in enumerate(beliefs)
            )
        )
        there: dict[int, Belief] = {}
        for _, begins, number in moments:
            if not begins:
                there.pop(number, None)
                continue
            belief = beliefs[number]
            if belief.until <= belief.start + SAME_S or not self._is_sound(belief):
                continue
            self.exercised[rule] += len(beliefs) > 1
            others = [each for each in there.values() if not self._was_tampered(each)]
            if permits:
                bad = len(others) >= permits
            else:
                bad = any(not (belief.kind == each.kind == "read") for each in others)
            if bad:
                shown = [(each.kind, each.process.name, round(each.start, 4), round(each.until, 4)) for each in others]
                mine = (belief.kind, belief.process.name, round(belief.start, 4), round(belief.until, 4))
                self.broken(rule, f"{name!r} was held by {mine} and by {shown}")
            there[number] = belief

    def _check_fences(self, name: bytes, beliefs: list[Belief]) -> None:
        # A master of a quorum draws what is no fence yet.
        fenced = [each for each in beliefs if each.lease.fence is not None and not isinstance(each.lease, VoteLease)]
        fenced.sort(key=self._granted_at)
        for earlier, later in self._in_order(fenced):
            self.exercised["S3"] += 1
            before, after = earlier.lease.fence, later.lease.fence
            assert before is not None
            assert after is not None
            if not (after > before or self._same_fence(earlier, later) or self._may_fall(earlier, later)):
                self.broken("S3", f"the fence of {name!r} was {before}, then {after}")
        holders = {each.lease: each for each in fenced}
        written = [holders[lease] for lease in self.written[text_of(name)] if lease in holders]
        for first, second in itertools.pairwise(written):
            late = self._granted_at(second) < self._requested_at(first)
            if late and not (self._same_fence(second, first) or self._may_fall(second, first)):
                who = f"{second.process.name} wrote {name!r} behind {first.process.name}"
                self.broken("guarded", f"{who}, whose lock was granted later")

    def _in_order(self, beliefs: list[Belief]) -> Iterator[tuple[Belief, Belief]]:
        """Yield each belief with the latest that was granted before it was requested, or has the largest fence of those.

        Two locks of a majority may be granted at once if a stranger has deleted a vote.
        """
        for number, later in enumerate(beliefs[1:], 1):
            since = self._requested_at(later)
            earlier = [each for each in beliefs[:number] if later.host != MAJORITY or each.start < since]
            if earlier:
                yield (
                    max(earlier, key=lambda each: each.lease.fence or 0) if later.host == MAJORITY else earlier[-1],
                    later,
                )

    def _requested_at(self, belief: Belief) -> float:
        """Return when the first server granted what was believed."""
        if belief.host != MAJORITY:
            return self._granted_at(belief)
        starts = [spans[0].start for (_, _, token), spans in self._spans.items() if token == belief.token]
        return min(starts, default=belief.start)

    def _same_fence(self, earlier: Belief, later: Belief) -> bool:
        """Return whether a lock was handed over, with its fence."""
        return later.token in self._handed_over and later.lease.fence == earlier.lease.fence

    def _may_fall(self, earlier: Belief, later: Belief) -> bool:
        """Return whether a fence may be less than the last one: that is lost, and the server's clock shows less.

        Of a majority a master must have lost it that has granted both, and has not restarted, which is noticed.
        """
        if later.host == MAJORITY:
            since = self._requested_at(earlier)
            hosts = [host for at, host, restarted in self.fences_lost if not restarted and since <= at <= later.start]
            names = [[(host, each.name, each.token) for each in (earlier, later)] for host in hosts]
            return any(all(name in self._spans for name in some) for some in names)
        old, new = self._grant(earlier), self._grant(later)
        if old is None or new is None or earlier.lease.fence is None:
            return False
        lost_at = [at for at, host, _ in self.fences_lost if host == new.host]
        lost = new.host != old.host or any(old.start <= at <= new.start for at in lost_at)
        return lost and new.clock_us <= earlier.lease.fence

    def _grant(self, belief: Belief) -> Span | None:
        """Return what the server said when it granted a lock; None if the server is a majority."""
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        spans = [span for span in spans if span.start <= belief.start + SAME_S]
        return max(spans, key=lambda span: span.start, default=None)

    def _granted_at(self, belief: Belief) -> float:
        grant = self._grant(belief)
        return belief.start if grant is None else grant.start
