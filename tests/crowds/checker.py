"""The checker for the whole family of locks: a sweep over what holders believed, whatever kind of lock it was.

What is true of every lease - fences grow, losses are told once and in time - is checked by tests/faults/checker.py, whose
terms these are. Here is what the kinds differ in, and what they owe to each other:

X1  who holds a name alone is the only one: no other like him, and nobody who shares it
X2  a name is shared by no more holders than there are permits
L1  nobody is starved
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.faults import checker as leases
from tests.faults.checker import Belief, Loss, Stop, Violation

Mode = Literal["alone", "shared"]


class Claim(NamedTuple):
    """A belief of one worker in a lock, held alone or together with others. Several names together are a claim each."""

    worker: str
    mode: Mode
    belief: Belief

    @property
    def lasted(self) -> bool:
        """Whether the first look still said "held"."""
        return self.belief.since < self.belief.until


@dataclass
class History:
    """What was recorded about one kind of lock; `permits` is how many may share a name, where there is a limit."""

    claims: list[Claim] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    permits: int | None = None


def check(history: History, *, late_s: float = 0.2) -> list[Violation]:
    """Every violation of what makes a lock safe."""
    beliefs = [claim.belief for claim in history.claims]
    of_leases = leases.check(leases.History(beliefs, None, history.losses, history.stops), late_s=late_s)
    return [
        # That no two believe together is true of exclusive locks only: the sweep knows better.
        *(violation for violation in of_leases if violation.rule != "S2"),
        *_crowded(history),
    ]


def _crowded(history: History) -> Iterator[Violation]:
    """Sweep over each name: who is in, as others come and go."""
    names: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim in history.claims:
        if claim.lasted:
            names[claim.belief.name].append(claim)
    for of_one_name in names.values():
        # At one and the same moment who goes is gone before who comes is in.
        moments = [(claim.belief.until, 0, claim) for claim in of_one_name]
        moments += [(claim.belief.since, 1, claim) for claim in of_one_name]
        inside: dict[Claim, None] = {}
        for _, comes, claim in sorted(moments, key=lambda moment: moment[:2]):
            if not comes:
                del inside[claim]
                continue
            yield from _conflicts(claim, inside, history.permits)
            inside[claim] = None


def _conflicts(claim: Claim, inside: Iterable[Claim], permits: int | None) -> Iterator[Violation]:
    others = [other for other in inside if other.belief.holder != claim.belief.holder]
    shared = [other for other in others if other.mode == "shared"]
    alone = [other for other in others if other.mode == "alone"]
    if alone or (others and claim.mode == "alone"):
        yield Violation("X1", f"at {claim.belief.since:.4f} not alone: {claim} comes to {alone or shared}")
    elif permits is not None and len(shared) >= permits:
        yield Violation("X2", f"at {claim.belief.since:.4f} more than {permits}: {claim} comes to {shared}")


def starved(claims: Iterable[Claim], workers: Iterable[str], since: float, until: float) -> list[Violation]:
    """Those of `workers` who were granted nothing between two moments."""
    served = {claim.worker for claim in claims if claim.lasted and since <= claim.belief.since < until}
    return [
        Violation("L1", f"{worker} was granted nothing between {since:.4f} and {until:.4f}")
        for worker in workers
        if worker not in served
    ]
