"""How often a lease may be renewed: once an interval, whatever its terms, the ticks, and the time that replies take.

A renewal that is answered and finds no time left until the lease counts as lost is followed by another at once: terms that
always leave so little would make a loop that renews as fast as the server answers.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.engine.rig import OK, START, Command, Rig, ScriptedServer, agreement, array
from wheel_lock.lease import Lease, local_deadline
from wheel_lock.options import MIN_RENEWED_TIMEOUT_S

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
