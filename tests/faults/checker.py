"""The checker: an interval sweep over what holders believed, what the server said, and what was told.

All times are readings of CLOCK_MONOTONIC in seconds, one clock for all processes of a host. A belief is recorded from
inside: from after the acquire returned to before the last look that said "held", so it is never longer than the truth,
and what the checker finds is a fault. One that ends where it begins says that the first look already said "not held".
Rules:

S1  every interval in which a holder believes lies inside one in which the server said so
S2  two beliefs on one name never overlap
S3  fences grow strictly with every grant of a name; a fenced register never accepts a smaller one
S5  a loss is told, once, by the local deadline V or on waking from a stop; there is no belief after V or after the loss
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

Ending = Literal["released", "lost", "running"]


class Belief(NamedTuple):
    """`holder` is one lease, never a thread or a process that had several; `ending` is what came after `until`."""

    name: str
    holder: str
    process: int
    since: float
    until: float
    fence: int | None
    ending: Ending


class Tenure(NamedTuple):
    """The server had the name down for this holder."""

    name: str
    holder: str
    since: float
    until: float


class Loss(NamedTuple):
    """A callback was told of a loss at `told`; `deadline` is the V that the lease had last."""

    name: str
    holder: str
    process: int
    deadline: float
    told: float


class Stop(NamedTuple):
    """A process was stopped."""

    process: int
    since: float
    until: float


class Write(NamedTuple):
    """A register took a write with this fence; `at` is its place in the register's own order."""

    name: str
    at: float
    fence: int


@dataclass
class History:
    """What was recorded. Without `tenures` S1 is not checked: there is nothing to check it against."""

    beliefs: list[Belief] = field(default_factory=list)
    tenures: list[Tenure] | None = None
    losses: list[Loss] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


class Violation(NamedTuple):
    rule: str
    text: str


def check(history: History, *, late_s: float = 0.2, slack_s: float = 0.001) -> list[Violation]:
    """Every violation that there is evidence of.

    `late_s` is how long telling a loss may take a thread that can run; `slack_s` is how exact tenures are.
    """
    return [
        *_uncovered_beliefs(history, slack_s),
        *_overlapping_beliefs(history.beliefs),
        *_fences_that_do_not_grow(history.beliefs),
        *_stale_writes(history.writes),
        *_untold_losses(history, late_s),
    ]


def _uncovered_beliefs(history: History, slack_s: float) -> Iterator[Violation]:
    if history.tenures is None:
        return
    tenures = _grouped(history.tenures, lambda tenure: (tenure.name, tenure.holder))
    for belief in history.beliefs:
        reached = belief.since
        for tenure in sorted(tenures[belief.name, belief.holder], key=lambda tenure: tenure.since):
            if tenure.since <= reached + slack_s:
                reached = max(reached, tenure.until)
        if reached + slack_s < belief.until:
            yield Violation("S1", f"at {reached:.4f} the server no longer said so: {belief}")


def _overlapping_beliefs(beliefs: Iterable[Belief]) -> Iterator[Violation]:
    for of_one_name in _grouped(filter(_lasted, beliefs), lambda belief: belief.name).values():
        longest: Belief | None = None
        for belief in sorted(of_one_name, key=lambda belief: (belief.since, belief.until)):
            if longest is not None and belief.since < longest.until and belief.holder != longest.holder:
                yield Violation("S2", f"at {belief.since:.4f} two believed: {longest} and {belief}")
            if longest is None or belief.until > longest.until:
                longest = belief


def _fences_that_do_not_grow(beliefs: Iterable[Belief]) -> Iterator[Violation]:
    fenced = [belief for belief in beliefs if belief.fence is not None and _lasted(belief)]
    for of_one_name in _grouped(fenced, lambda belief: belief.name).values():
        before: Belief | None = None
        for belief in sorted(of_one_name, key=lambda belief: belief.since):
            if before is not None and before.holder != belief.holder and (before.fence or 0) >= (belief.fence or 0):
                yield Violation("S3", f"the fence of {belief} is not above that of {before}")
            before = belief


def _lasted(belief: Belief) -> bool:
    return belief.since < belief.until


def _stale_writes(writes: Iterable[Write]) -> Iterator[Violation]:
    for of_one_name in _grouped(writes, lambda write: write.name).values():
        highest = 0
        for write in sorted(of_one_name, key=lambda write: write.at):
            if write.fence < highest:
                yield Violation("S3", f"a register that had seen {highest} took {write}")
            highest = max(highest, write.fence)


def _untold_losses(history: History, late_s: float) -> Iterator[Violation]:
    losses = _grouped(history.losses, lambda loss: (loss.name, loss.holder))
    for told in losses.values():
        if len(told) > 1:
            yield Violation("S5", f"told {len(told)} times: {told}")
    for loss in history.losses:
        # A process that was stopped has until then, and a moment more, from its waking on.
        naps = [stop.until for stop in history.stops if stop.process == loss.process and stop.since < loss.told]
        if loss.told > max([loss.deadline, *naps]) + late_s:
            yield Violation("S5", f"told late: {loss}")
    for belief in history.beliefs:
        told = losses.get((belief.name, belief.holder), [])
        if belief.ending == "lost" and not told:
            yield Violation("S5", f"never told: {belief}")
        for loss in told:
            if _lasted(belief) and belief.until > loss.deadline:
                yield Violation("S5", f"belief after its deadline: {belief} and {loss}")
            if _lasted(belief) and belief.until > loss.told:
                yield Violation("S5", f"belief after its loss was told: {belief} and {loss}")


T = TypeVar("T")
K = TypeVar("K")


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> defaultdict[K, list[T]]:
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
