"""When renewals come, how many calls they take, and what the statistics say of it."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.engine.rig import FINE, GONE, START, TICK_S, Command, Rig, array, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.requests.extend import Extend
from wheel_lock.errors import LossReason
from wheel_lock.lease import Event, State
from wheel_lock.lock_types import EXCLUSIVE


def arrivals(rig: Rig, seconds: float) -> Counter[float]:
    """Let a healthy server renew for a while; how many leases were renewed when."""
    seen: Counter[float] = Counter()

    def serve() -> None:
        for command in rig.server.agree():
            if command.what == "renew":
                seen[round(rig.now - START, 6)] += len(command.pairs)

    rig.go_on(seconds, serve)
    return seen


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.rig(renewal_slack=0)
def test_first_renewals_of_leases_acquired_in_one_moment_are_spread(rig: Rig, together: bool) -> None:
    count = 10_000 if together else 1000
    if together:
        rig.hold_many(names(count), 30.0)
    else:
        for name in names(count):
            rig.hold(name, 30.0)
    seen = arrivals(rig, 10.0)
    assert sum(seen.values()) == count
    most = 500 if together else 100  # those of one call stay together; of the others a crowd is 64
    assert max(seen.values()) <= most
    assert min(seen) >= 1.25 - TICK_S  # never in the first eighth: that would be for nothing
    again = arrivals(rig, 10.0)
    assert sum(again.values()) == count
    assert max(again.values()) <= most


@pytest.mark.parametrize(("in_flight", "groups"), [(1, 1), (4, 7)])
def test_thousands_of_leases_due_in_one_tick_are_drained_in_bounded_calls(in_flight: int, groups: int) -> None:
    with Rig(batch_size=100, max_calls_in_flight=in_flight) as rig:
        leases = []
        for number in range(groups):
            leases += rig.hold_many([f"{number}:{name}" for name in names(3500 // groups)], 30.0 + number / 10)
        rig.server.take()
        rig.jump(11.0)
        unanswered: list[Command] = []
        renewed: Counter[bytes] = Counter()
        most = 0
        while True:
            commands = rig.server.take()
            unanswered += commands
            most = max(most, len(unanswered))
            if not unanswered:
                break
            command = unanswered.pop(0)
            assert len(command.pairs) <= 100
            renewed.update(token for _, token in command.pairs)
            rig.say(FINE)
        assert renewed == {lease.token: 1 for lease in leases}
        assert most <= in_flight
        assert {lease.state for lease in leases} == {State.HELD}
        assert rig.stats().renewed == len(leases)
        assert rig.stats().overdue == 0
        assert rig.losses == []


# Statistics, exact


def test_lag_is_the_time_from_due_to_confirmed_and_contains_the_lateness_of_the_thread(rig: Rig) -> None:
    rig.hold("a", 3.0)
    rig.jump(1.4)
    rig.jump(0.1)
    rig.agree()
    stats = rig.stats()
    assert stats.renewal_lag_max_s == pytest.approx(0.5)
    assert stats.renewal_lag_p50_s == pytest.approx(0.5)
    assert stats.renewal_lag_p99_s == pytest.approx(0.5)


def test_lag_of_merged_ticks_is_each_leases_own(rig: Rig) -> None:
    for name in names(10):
        rig.hold(name, 30.0)
        rig.jump(0.1)
    rig.jump(10.0)  # due 1.0, 0.9, ... 0.1 s ago
    rig.agree()
    stats = rig.stats()
    assert stats.renewal_lag_max_s == pytest.approx(1.0)
    assert stats.renewal_lag_p50_s == pytest.approx(0.5, rel=0.06)
    assert stats.renewal_lag_p99_s == pytest.approx(1.0, rel=0.06)
    assert stats.renewed == 10
    assert stats.batches == 1


def test_the_least_time_that_was_left(rig: Rig) -> None:
    lease = rig.hold("a", 3.0)
    assert rig.stats().renewal_time_left_min_s == float("inf")
    rig.be_silent(1.0)
    rig.jump(1.5)
    rig.reply(None, FINE)
    assert rig.stats().renewal_time_left_min_s == pytest.approx(2.968 - 2.5)
    rig.go_on(1.0, rig.agree)
    assert lease.renewals >= 2
    assert rig.stats().renewal_time_left_min_s == pytest.approx(2.968 - 2.5)


def test_every_counter_counts_what_it_says(rig: Rig) -> None:
    leases = rig.hold_many(names(4), 3.0)
    rig.go_on(1.0)
    rig.reply(None, array(1, GONE, 2, "MISCONF no disk"))
    stats = rig.stats()
    assert (stats.acquired, stats.held, stats.renewed, stats.lost, stats.unknown) == (4, 3, 2, 1, 1)
    assert (stats.overdue, stats.batches, stats.connects, stats.released) == (1, 1, 1, 0)
    assert {str(reason): times for reason, times in stats.lost_by_reason.items()} == {"key gone": 1}
    rig.go_on(0.1, rig.agree)
    rig.release(leases[3])
    rig.say(integer(1))
    stats = rig.stats()
    assert (stats.renewed, stats.batches, stats.overdue, stats.held, stats.released) == (3, 2, 0, 2, 1)


def test_leases_of_one_timeout_have_one_group_however_many_timeouts_there_are(rig: Rig) -> None:
    renewer = rig.engine.router.renewer
    first = renewer.group(EXCLUSIVE, 30.0, 30_000, 10.0)
    assert renewer.group(EXCLUSIVE, 30.0, 30_000, 5.0) is not first
    for number in range(2000):  # all of one millisecond, as timeouts that a program computes may be
        renewer.group(EXCLUSIVE, 20.0 + number * 1e-7, 20_000, None)
    assert renewer.group(EXCLUSIVE, 30.0, 30_000, 10.0) is first
    assert len(renewer._found) <= 256


def test_groups_live_as_long_as_their_leases() -> None:
    with Rig(renewal_slack=0.0) as rig:
        groups, kept = rig.engine.router.renewer._groups, rig.hold("kept", 5.0)
        for number in range(1000):
            rig.release(rig.hold("lock", 10.0 + number / 1000))
            rig.agree()
        rig.go_on(1.0, rig.agree)
        gc.collect()
        assert len(groups) <= 300
        assert rig.hold("other", 5.0).group is kept.group
        rig.fork()
        assert not rig.is_valid(kept)
        assert not kept.group.alive
        assert rig.hold("child's", 5.0).group.alive


def test_a_lease_at_its_limit_that_could_not_be_extended_in_its_last_tick_is_lost_at_once(rig: Rig) -> None:
    lease = rig.hold("a", 3.0, renew=False)
    group_of(lease).renewer.untrack(lease)  # as the request does when it starts
    lease.transition(Event.EXTEND)
    scale = rig.timer.scale
    rig.go_to(scale.seconds(scale.floor(lease.deadline) - 1))
    rig.turn()
    Extend(rig.engine.leases, lease, 3000, False, Future(lambda: None)).on_unavailable(ConnectionError())
    assert lease.loss is LossReason.RENEWAL_LIMIT
    assert rig.now < lease.deadline
    assert lease not in rig.timer.wheel
