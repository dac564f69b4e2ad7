"""When renewals come, how many calls they take, and what the statistics say of it."""

from __future__ import annotations

import gc
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.engine.rig import (
    FINE,
    GONE,
    OK,
    START,
    TICK_S,
    Command,
    Rig,
    ScriptedServer,
    agreement,
    array,
    integer,
    names,
)
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.requests.extend import Extend
from wheel_lock.errors import LossReason
from wheel_lock.lease import Event, Lease, State, local_deadline
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.options import MIN_RENEWED_TIMEOUT_S


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
    # Those of one call stay together; of the others a crowd is 64.
    most = rig.engine.options.batch_size if together else 100
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


# The slack of renewals: they come early to join others of their node, by at most their share, and never late


SLACK = 1 / 32
INTERVAL_S = 10.0
INTERVAL_TICKS = 1000

slackly = pytest.mark.rig(renewal_slack=SLACK)


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


@slackly
def test_what_is_noted_is_bounded_by_what_is_held(rig: Rig) -> None:
    """A lock of a day that is taken and released again and again leaves nothing behind for a third of the day."""
    kept = [rig.hold(f"kept:{number}", 86400.0 + 3600.0 * number) for number in range(5)]
    for number in range(500):
        rig.release(rig.hold("a", 86400.0 + number, renew_every=3000.0 + number % 7))
        rig.agree()
        rig.go_on(TICK_S)
        assert len(rig.engine.router.renewer.flow.joint._keys) <= 2 * (len(kept) + 1) + 64
    assert {lease.tick for lease in kept} <= {tick for _, tick in rig.engine.router.renewer.flow.joint._keys}


@slackly
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


# How often a lease may be renewed: once an interval, whatever its terms, the ticks, and the time that replies take.
# A renewal that is answered and finds no time left until the lease counts as lost is followed by another at once: terms
# that always leave so little would make a loop that renews as fast as the server answers.


NOT_LOCAL_TEXT = "ERR Script attempted to access a non local key in a cluster node"


def round_trips(rig: Rig, seconds: float, latencies: Iterable[float]) -> Iterator[float]:
    """Let a server answer each command after a while of its own; yield when each renewal arrived."""
    pauses, end = iter(latencies), rig.now + seconds
    under_way: deque[tuple[float, ScriptedServer, Command]] = deque()
    still = 0
    while rig.now < end - 1e-9:
        rig.turn()
        for server in rig.connector.servers:
            for command in server.take():
                under_way.append((rig.now + next(pauses), server, command))
                if command.what == "renew":
                    yield rig.now - START
        ready = [each for each in under_way if each[0] <= rig.now + 1e-9]
        for each in ready:
            under_way.remove(each)
            if not each[1].closed and not each[1].hung_up:
                each[1].say(agreement(each[2]))
        still = still + 1 if ready else 0
        assert still < 100, "a hundred round trips while the clock stood still: a hot loop"
        if not ready:
            due = [
                moment for moment in (rig.timer.next_due_at(), *[each[0] for each in under_way]) if moment is not None
            ]
            rig.clock.jump(max(min([end, *due]) - rig.now, 0.0))


def check_rate(rig: Rig, lease: Lease, seconds: float, latencies: Sequence[float]) -> None:
    """Renewals come once an interval, give or take those that a new connection brings."""
    interval_s = lease.group.interval_ticks * rig.timer.scale.tick_s  # type: ignore[attr-defined]
    arrived = list(round_trips(rig, seconds, itertools.cycle(latencies)))
    connects = rig.connector.attempts
    assert len(arrived) <= seconds / interval_s + 2 + 2 * connects, (interval_s, connects, arrived[:20])
    # In any second of it, too.
    for start in range(int(seconds)):
        some = [moment for moment in arrived if start <= moment < start + 1]
        assert len(some) <= 1 / interval_s + 2 + 2 * connects


timeouts = st.sampled_from([0.05, 0.051, 0.06, 0.1, 0.3, 1.0, 3.0, 10.0]) | st.floats(MIN_RENEWED_TIMEOUT_S, 20.0)
shares = st.sampled_from([1 / 3, 0.5, 0.8, 0.9, 0.99, 0.999, 0.9999]) | st.floats(0.05, 0.9999)
"""Of the time for which a lease is believed."""


@given(timeout=timeouts, share=shares, latencies=st.lists(st.floats(0.0, 0.015), min_size=1, max_size=5))
@example(timeout=0.05, share=0.04 / 0.0475, latencies=[0.0])
@example(timeout=0.1, share=0.09 / 0.097, latencies=[0.0])
@example(timeout=1.0, share=0.985 / 0.988, latencies=[0.0])
@example(timeout=10.0, share=9.895 / 9.898, latencies=[0.0])
@example(timeout=3.0, share=2.965 / 2.968, latencies=[0.0])
@example(timeout=0.05, share=0.0474 / 0.0475, latencies=[0.015])
def test_a_well_server_is_asked_once_an_interval_and_the_lease_stays_held(
    timeout: float, share: float, latencies: list[float]
) -> None:
    with Rig() as rig:
        lease = rig.hold("a", timeout, renew_every=local_deadline(0.0, timeout) * share)
        rig.launch.slow = True  # a second connection takes its time as well
        # A lease of five ticks has time for a reply that comes within one.
        check_rate(rig, lease, 10 * timeout + 1.0, [each * (0.6 if timeout < 0.1 else 1.0) for each in latencies])
        assert rig.is_valid(lease)
        assert rig.losses == []
        assert lease.renewals >= 9


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("seconds", [0.06, 1.0, 5.0])
@pytest.mark.parametrize("share", [0.5, 0.99, 0.9999])
def test_an_extended_lease_is_renewed_no_more_often(share: float, seconds: float, replace: bool) -> None:
    with Rig() as rig:
        lease = rig.hold("a", 1.0, renew_every=local_deadline(0.0, 1.0) * share)
        future = rig.extend(lease, seconds, replace=replace)
        rig.reply(None, b":%d\r\n" % round(1000 * (seconds if replace else 1.0 + seconds)))
        assert future.result() is None
        check_rate(rig, lease, 20.0, [0.001])
        assert rig.is_valid(lease)


ANSWERS: dict[str, Callable[[Command], bytes]] = {
    "another's slot": lambda command: array(1, NOT_LOCAL_TEXT),
    "no memory": lambda command: array(1, "OOM command not allowed"),
    "busy": lambda command: b"-BUSY no time\r\n",
    "no script": lambda command: b"-NOSCRIPT what is that\r\n",
    "keys wanted": lambda command: b"-ERR script tried accessing undeclared keys\r\n",
    "moved": lambda command: b"-MOVED 1 127.0.0.1:1\r\n",
    "nonsense": lambda command: b"+what\r\n",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_whatever_the_server_answers_it_is_not_asked_in_a_tight_loop(answer: Callable[[Command], bytes]) -> None:
    with Rig() as rig:
        lease = rig.hold("a", 3.0)
        asked: list[float] = []

        def serve() -> None:
            for server in rig.connector.servers:
                for command in server.take():
                    asked.append(rig.now)
                    server.say(answer(command) if command.what == "renew" else OK)

        rig.go_on(2.9, serve)
        assert len(asked) <= 2 + 1.9 / 0.015, "no more than once a pause, and in full where the script is not known"
        assert rig.is_valid(lease)
        rig.go_on(0.1, serve)
        assert [reason for _, reason in rig.reasons] == ["not confirmed in time"]
