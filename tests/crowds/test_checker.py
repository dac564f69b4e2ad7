"""The checker of the family finds what it is there to find: a good history, and each way to spoil it."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.crowds.checker import Claim, History, Mode, check, starved
from tests.faults.checker import Belief, Ending, Loss

SHELF, BOX = "shelf", "box"


def claim(
    worker: str,
    since: float,
    until: float,
    mode: Mode = "alone",
    *,
    name: str = SHELF,
    fence: int | None = None,
    ending: Ending = "released",
) -> Claim:
    return Claim(worker, mode, Belief(name, f"{worker} from {since}", 1, since, until, fence, ending))


def rules(history: History) -> set[str]:
    return {violation.rule for violation in check(history)}


def test_writers_one_after_the_other_and_readers_together_keep_the_rules() -> None:
    history = History(
        [
            claim("ann", 0.0, 1.0, fence=7),
            claim("bob", 1.0, 2.0, "shared"),
            claim("cyd", 1.5, 2.5, "shared"),
            claim("dan", 2.5, 3.0, fence=8),
            claim("eve", 0.0, 3.0, name=BOX),
        ]
    )
    assert check(history) == []


def test_two_writers_or_a_reader_with_a_writer_are_caught() -> None:
    modes: list[Mode] = ["alone", "shared"]
    for mode in modes:
        history = History([claim("ann", 1.0, 2.0), claim("bob", 0.5, 1.1, mode)])
        assert rules(history) == {"X1"}


def test_one_permit_too_many_is_caught() -> None:
    history = History([claim("abcd"[number], number * 0.1, 1.0, "shared") for number in range(4)], permits=4)
    assert check(history) == []
    history.permits = 3
    [violation] = check(history)
    assert violation.rule == "X2"
    assert "'d'" in violation.text


def test_overlapping_sets_that_are_held_together_are_caught() -> None:
    ann = [claim("ann", 0.0, 1.0, name=name) for name in ("a", "b")]
    bob = [claim("bob", 0.5, 1.5, name=name) for name in ("b", "c")]
    [violation] = check(History([*ann, *bob]))
    assert violation.rule == "X1"
    assert check(History([*ann, bob[1]])) == []


@pytest.mark.parametrize("second", [7, 6])
def test_fences_that_do_not_grow_are_caught(second: int) -> None:
    history = History([claim("ann", 0.0, 1.0, fence=7), claim("bob", 1.5, 2.0, fence=second)])
    assert rules(history) == {"S3"}


def test_a_writer_that_becomes_a_reader_is_one_holder() -> None:
    since = 0.0
    writes = claim("ann", since, 1.0)
    reads = Claim("ann", "shared", writes.belief._replace(since=0.9, until=2.0))
    assert check(History([writes, reads])) == []
    assert rules(History([writes, reads, claim("bob", 1.5, 1.6)])) == {"X1"}
    assert rules(History([writes, reads, claim("bob", 0.5, 1.6, "shared")])) == {"X1"}


def test_a_loss_that_nobody_was_told_of_is_caught_and_so_is_one_told_late() -> None:
    lost = claim("ann", 0.0, 0.9, ending="lost")
    history = History([lost])
    assert rules(history) == {"S5"}
    history.losses = [Loss(SHELF, lost.belief.holder, 1, 0.95, 0.96)]
    assert check(history) == []
    history.losses = [Loss(SHELF, lost.belief.holder, 1, 0.95, 1.96)]
    assert rules(history) == {"S5"}


def test_who_got_nothing_was_starved() -> None:
    claims = [claim("ann", 0.5, 1.0), claim("bob", 5.0, 6.0), claim("cyd", 6.0, 6.0)]
    assert starved(claims, ["ann", "bob"], 0.0, 10.0) == []
    [violation] = starved(claims, ["ann", "bob"], 2.0, 10.0)
    assert "ann" in violation.text
    # One that was over at the first look was of no use to anybody.
    [violation] = starved(claims, ["bob", "cyd"], 0.0, 10.0)
    assert "cyd" in violation.text


any_claims = st.lists(
    st.builds(
        lambda worker, since, length, mode: claim(worker, since, since + length, mode),
        st.sampled_from("abcdef"),
        st.integers(0, 20),
        st.integers(0, 6),
        st.sampled_from(["alone", "shared"]),
    ),
    max_size=8,
    unique_by=lambda one: one.belief.holder,
)


@given(any_claims)
def test_the_sweep_finds_a_conflict_exactly_where_a_search_of_all_pairs_does(claims: list[Claim]) -> None:
    conflict = any(
        "alone" in (one.mode, other.mode)
        and max(one.belief.since, other.belief.since) < min(one.belief.until, other.belief.until)
        for one, other in combinations(claims, 2)
    )
    assert bool(check(History(claims))) == conflict


@given(any_claims, st.integers(1, 4))
def test_the_sweep_finds_too_many_permits_exactly_where_counting_does(claims: list[Claim], permits: int) -> None:
    sharing = [one._replace(mode="shared") for one in claims]
    # Nobody comes or goes between whole numbers.
    most = max(sum(one.belief.since <= at < one.belief.until for one in sharing) for at in range(30))
    assert bool(check(History(sharing, permits=permits))) == (most > permits)
