"""The slack of renewals: they come early to join others of their node, by at most their share, and never late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.engine.rig import START, TICK_S, Rig, names

SLACK = 1 / 32
INTERVAL_S = 10.0
INTERVAL_TICKS = 1000

pytestmark = pytest.mark.rig(renewal_slack=SLACK)


def renewals(rig: Rig, seconds: float) -> dict[str, list[int]]:
    """Let a healthy server renew for a while; at which ticks each lease was renewed."""
    seen: dict[str, list[int]] = defaultdict(list)

    def serve() -> None:
        for command in rig.server.agree():
            if command.what == "renew":
                for name in command.names:
                    seen[name].append(round((rig.now - START) / TICK_S))

    rig.go_on(seconds, serve)
    return seen


def joint_ticks(seen: dict[str, list[int]], since: int) -> Counter[int]:
    """Return how many leases were renewed at each tick of one interval."""
    every = [tick for ticks in seen.values() for tick in ticks]
    return Counter(tick for tick in every if since <= tick < since + INTERVAL_TICKS)


def acquired_at(rig: Rig, moments: Sequence[int], **terms: float) -> dict[str, int]:
    """Acquire a lease at each of ``moments``, in ticks from now on; return the tick of each."""
    start = rig.now
    ticks: dict[str, int] = {}
    for number, moment in enumerate(sorted(moments)):
        rig.go_to(start + moment * TICK_S, rig.agree)
        rig.hold(f"lock:{number}", 30.0, renew_every=INTERVAL_S, **terms)
        ticks[f"lock:{number}"] = round((rig.now - START) / TICK_S)
    return ticks


@given(timeout=st.floats(0.5, 60.0), share=st.floats(0.1, 0.9), slack=st.sampled_from([0.0, SLACK, 0.25, 0.5]))
def test_a_lease_that_is_alone_is_renewed_exactly_on_time(timeout: float, share: float, slack: float) -> None:
    with Rig(renewal_slack=slack) as rig:
        lease = rig.hold("a", timeout, renew_every=timeout * share)
        every = rig.engine.router.renewer.like(lease.group).interval_ticks  # type: ignore[arg-type]
        seen = renewals(rig, 5 * every * TICK_S)
        assert seen["a"][:5] == [every * number for number in range(1, 6)]


@given(moments=st.lists(st.integers(0, 999), min_size=1, max_size=60), slack=st.sampled_from([0.0, SLACK, 0.25]))
@example(moments=list(range(0, 1000, 5)), slack=SLACK)
def test_no_renewal_is_late_and_none_is_earlier_than_the_slack(moments: list[int], slack: float) -> None:
    with Rig(renewal_slack=slack) as rig:
        acquired = acquired_at(rig, moments)
        before = renewals(rig, 0.0)
        assert not before
        seen = renewals(rig, 4 * INTERVAL_S)
        most = int(INTERVAL_TICKS * slack + 1e-6)
        for name, start in acquired.items():
            for earlier, later in zip([start, *seen[name]], seen[name], strict=False):
                assert INTERVAL_TICKS - most <= later - earlier <= INTERVAL_TICKS, name
        assert rig.losses == []
        assert rig.stats().renewal_lag_max_s < TICK_S


def test_no_more_join_than_four_batches_hold_and_those_of_one_tick_stay_together() -> None:
    with Rig(batch_size=50, renewal_slack=SLACK) as rig:
        rig.hold_many(names(10_000), 30.0)  # eleven or twelve a tick
        renewals(rig, INTERVAL_S)
        seen = renewals(rig, INTERVAL_S)
        ticks = joint_ticks(seen, INTERVAL_TICKS + 1)
        assert max(ticks.values()) <= 200
        assert 50 <= len(ticks) <= 70
        again = joint_ticks(renewals(rig, INTERVAL_S), 2 * INTERVAL_TICKS + 1)
        assert {tick - INTERVAL_TICKS: number for tick, number in again.items()} == ticks


def test_what_is_noted_is_bounded_by_what_is_held(rig: Rig) -> None:
    """A lock of a day that is taken and released again and again leaves nothing behind for a third of the day."""
    kept = [rig.hold(f"kept:{number}", 86400.0 + 3600.0 * number) for number in range(5)]
    for number in range(500):
        rig.release(rig.hold("a", 86400.0 + number, renew_every=3000.0 + number % 7))
        rig.agree()
        rig.go_on(TICK_S)
        assert len(rig.engine.router.renewer.flow.joint._keys) <= 2 * (len(kept) + 1) + 64
    assert {lease.tick for lease in kept} <= {tick for _, tick in rig.engine.router.renewer.flow.joint._keys}


def test_leases_of_one_tick_join_others_each_within_its_own_slack(rig: Rig) -> None:
    far = rig.hold("far", 100.0, renew_every=32.0)  # a slack of 100 ticks
    rig.go_on(32.0 - INTERVAL_S, rig.agree)
    near = rig.hold("near", 30.0, renew_every=INTERVAL_S)
    assert far.tick == near.tick == 3200
    rig.go_on(1.5, rig.agree)
    first = rig.hold("first", 30.0, renew_every=INTERVAL_S - 2.0)  # due half a second before them
    rig.go_on(0.3, rig.agree)
    second = rig.hold("second", 30.0, renew_every=INTERVAL_S - 2.0)
    assert (first.tick, second.tick) == (3150, 3180)
    seen = renewals(rig, INTERVAL_S)
    assert (seen["first"], seen["far"]) == ([3150], [3150])
    assert (seen["second"], seen["near"]) == ([3180], [3180])
