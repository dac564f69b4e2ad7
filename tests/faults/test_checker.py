"""The checker finds what it is there to find: histories of a simulated server and of holders who break a rule each."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.checker import Belief, History, Loss, Stop, Tenure, Write, check

NAME = "order:42"
DELAY_S = 0.010  # one way over the simulated network


@dataclass
class Server:
    """One key with an expiry and a fence, at times that the story gives. It keeps its tenures as the truth."""

    fence: int = 0
    holder: str = ""
    tenures: list[Tenure] = field(default_factory=list)

    @property
    def expires(self) -> float:
        return self.tenures[-1].until if self.holder else 0.0

    def acquire(self, at: float, holder: str, timeout_s: float, *, counts: bool = True) -> int | None:
        """The fence of the grant, or None; `counts` is whether the server still knows the last fence."""
        if self.holder and at < self.expires:
            return None
        self.holder = holder
        self.fence = self.fence + 1 if counts else 1
        self.tenures.append(Tenure(NAME, holder, at, at + timeout_s))
        return self.fence

    def renew(self, at: float, holder: str, timeout_s: float, *, checked: bool = True) -> bool:
        if at >= self.expires or (checked and self.holder != holder):
            return False
        self.tenures[-1] = self.tenures[-1]._replace(until=at + timeout_s)
        return True

    def delete(self, at: float, holder: str, *, checked: bool = True) -> None:
        if at < self.expires and (not checked or self.holder == holder):
            self.tenures[-1] = self.tenures[-1]._replace(until=at)
            self.holder = ""


def local_deadline(sent: float, timeout_s: float) -> float:
    return sent + timeout_s * 0.99 - 0.002


def story(mutant: str = "") -> History:
    """Ann is granted the lock by a slow reply and loses it; Bob, who waits for it, has it; then Cyd does.

    Without a mutant everybody keeps the rules. All timeouts are 1 s, but for Ann's late renewal of 0.1 s.
    """
    server, history = Server(), History()

    # Ann's acquire is sent at 0 and answered at 0.4. She renews once, at 0.9, and that is late on its way.
    fence = server.acquire(DELAY_S, "ann", 1.0)
    deadline = local_deadline(0.4 if mutant == "V from reply time" else 0.0, 1.0)
    history.losses.append(Loss(NAME, "ann", 1, deadline, deadline))
    history.beliefs.append(Belief(NAME, "ann", 1, 0.4, deadline, fence, "lost"))

    # Bob is granted it at the server's expiry, and has until 2.0 to renew.
    bob_since = server.expires + 0.001
    fence = server.acquire(bob_since, "bob", 1.0, counts=mutant != "a fence that begins anew")
    bob_until = local_deadline(bob_since - DELAY_S, 1.0)

    # At 1.1 Ann's renewal arrives, at 1.2 her release does: both are too late, and the server says so.
    server.renew(1.1, "ann", 0.1, checked=mutant != "renewal without the owner check")
    server.delete(1.2, "ann", checked=mutant != "a bare DEL")
    if mutant == "a lost lease that comes back":
        history.beliefs.append(Belief(NAME, "ann", 1, 1.1 + DELAY_S, 1.15, history.beliefs[0].fence, "running"))

    # Cyd is granted it when the key has gone.
    cyd_since = max(server.expires, 1.3) + 0.001
    history.beliefs.append(Belief(NAME, "bob", 2, bob_since + DELAY_S, bob_until, fence, "lost"))
    history.losses.append(Loss(NAME, "bob", 2, bob_until, bob_until))
    fence = server.acquire(cyd_since, "cyd", 1.0)
    history.beliefs.append(Belief(NAME, "cyd", 3, cyd_since + DELAY_S, cyd_since + 0.5, fence, "released"))
    server.delete(cyd_since + 0.6, "cyd")

    history.tenures = server.tenures
    history.writes = [Write(NAME, number, fence) for number, fence in enumerate([1, 1, 2, 3])]
    if mutant == "a register that takes anything":
        history.writes.append(Write(NAME, 9, 1))
    if mutant == "told at the end of the process":
        history.losses[0] = history.losses[0]._replace(told=5.0)
    if mutant == "told again":
        history.losses.append(history.losses[0])
    if mutant == "never told":
        del history.losses[0]
    if mutant == "believed beyond V":
        history.beliefs[0] = history.beliefs[0]._replace(until=deadline + 0.005)
    return history


def test_a_history_that_keeps_the_rules_passes() -> None:
    assert check(story()) == []


@pytest.mark.parametrize(
    ("mutant", "rules"),
    [
        ("V from reply time", {"S1", "S2"}),
        ("a bare DEL", {"S1", "S2"}),
        ("renewal without the owner check", {"S1", "S2"}),
        ("a lost lease that comes back", {"S1", "S2", "S3", "S5"}),
        ("a fence that begins anew", {"S3"}),
        ("a register that takes anything", {"S3"}),
        ("told at the end of the process", {"S5"}),
        ("told again", {"S5"}),
        ("never told", {"S5"}),
        ("believed beyond V", {"S5"}),
    ],
)
def test_a_mutant_is_caught(mutant: str, rules: set[str]) -> None:
    assert {violation.rule for violation in check(story(mutant))} == rules


def test_a_stopped_process_may_tell_its_losses_when_it_wakes() -> None:
    history = story("told at the end of the process")
    assert check(history)
    history.stops = [Stop(2, 0.9, 4.9)]
    assert check(history), "another process was stopped, which excuses nothing"
    history.stops = [Stop(1, 0.9, 4.7)]
    assert check(history), "it had run for longer than it may take"
    history.stops = [Stop(1, 0.9, 4.9)]
    assert check(history) == []


def test_a_stopped_process_may_not_believe_for_longer() -> None:
    history = story("believed beyond V")
    history.stops = [Stop(1, 0.9, 4.9)]
    assert {violation.rule for violation in check(history)} == {"S5"}


def test_a_grant_that_was_over_at_the_first_look_is_no_belief() -> None:
    """As when a process is stopped between the grant and the first look at it."""
    history = story()
    history.beliefs[0] = history.beliefs[0]._replace(since=4.0, until=4.0)
    assert check(history) == []
    history.losses.pop(0)
    assert {violation.rule for violation in check(history)} == {"S5"}


def test_one_who_holds_on_through_several_renewals_is_covered_by_all_of_them() -> None:
    history = History(
        beliefs=[Belief(NAME, "ann", 1, 0.0, 3.0, 1, "running")],
        tenures=[Tenure(NAME, "ann", 1.5, 3.1), Tenure(NAME, "ann", 0.0, 2.0)],
    )
    assert check(history) == []
    history.tenures = [Tenure(NAME, "ann", 0.0, 1.0), Tenure(NAME, "ann", 1.5, 3.1)]
    [violation] = check(history)
    assert violation.rule == "S1"


beliefs = st.lists(
    st.builds(
        lambda name, since, length, holder: Belief(name, holder, 1, since, since + length, None, "running"),
        st.sampled_from(["a", "b"]),
        st.integers(0, 20),
        st.integers(0, 6),
        st.sampled_from(["ann", "bob", "cyd", "dan"]),
    ),
    max_size=8,
)


@given(beliefs)
def test_the_sweep_finds_an_overlap_exactly_where_a_search_of_all_pairs_does(some: list[Belief]) -> None:
    overlap = any(
        one.name == other.name
        and one.holder != other.holder
        and max(one.since, other.since) < min(one.until, other.until)
        for one, other in combinations(some, 2)
    )
    assert bool(check(History(beliefs=some))) == overlap
