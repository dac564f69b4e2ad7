"""After a reconnection the server is asked about everything at once: it may have come back empty."""

from __future__ import annotations

import pytest

from tests.engine.support import FINE, GONE, Command, Rig, array, error, names
from wheel_lock.errors import LossReason

INTERVAL_S = 10.0  # of leases of 30 s


def reconnect(rig: Rig) -> None:
    """Lose the connection and make another, without an answer on it."""
    rig.server.close()
    rig.go_on(0.1)
    assert rig.engine.router.renewer.node.ready


def forgetful(rig: Rig) -> None:
    """Answer as a server that knows nothing of what is renewed, and grants all else."""
    for command in rig.server.take():
        pairs = len(command.pairs)
        gone = [word for number in range(1, pairs + 1) for word in (number, GONE)]
        rig.server.say(array(*gone) if command.what == "renew" else FINE)


def test_a_server_that_comes_back_empty_is_found_out_at_once() -> None:
    with Rig(batch_size=500) as rig:
        rig.hold_many(names(10_000), 30.0)
        rig.go_on(1.0)
        rig.server.close()
        rig.go_on(1.0, lambda: forgetful(rig))
        assert len(rig.told) == 10_000
        assert {event.reason for _, event in rig.told} == {LossReason.KEY_GONE}


def test_a_lease_keeps_its_due_tick_and_its_lag_is_not_counted(rig: Rig) -> None:
    lease = rig.hold("a", 30.0)
    due = lease.tick
    rig.go_on(4.0)
    reconnect(rig)
    rig.go_on(0.0, rig.agree)
    assert (lease.renewals, lease.tick) == (1, due)
    assert lease.deadline > rig.now + 29.0
    assert rig.stats().renewal_lag_max_s == 0.0
    rig.go_on(INTERVAL_S, rig.agree)
    assert (lease.renewals, lease.tick) == (2, due + 1000)


def test_a_few_calls_are_under_way_at_a_time_and_what_is_due_goes_between_them() -> None:
    with Rig(batch_size=10) as rig:
        rig.hold_many(names(1_000), 30.0)
        urgent = rig.hold("urgent", 3.0)
        rig.go_on(0.5)
        reconnect(rig)
        calls = rig.server.take()
        assert [command.what for command in calls] == ["renew"] * 8
        rig.go_on(0.6)
        due = rig.server.take()
        assert ["urgent"] in [command.names for command in due]
        rig.server.say(FINE * (len(calls) + len(due)))
        rig.go_on(0.3, rig.agree)
        assert urgent.renewals == 1
        assert rig.stats().renewed >= 1_001


def test_what_was_confirmed_on_the_new_connection_is_not_asked_about_again(rig: Rig) -> None:
    overdue = rig.hold("overdue", 3.0)
    rig.go_on(0.9)
    rig.hold("held", 30.0)
    rig.go_on(0.1)  # the renewal of the first is under way
    rig.server.take()
    reconnect(rig)
    renewed = [name for command in rig.server.take() for name in command.names]
    assert sorted(renewed) == ["held", "overdue"]
    rig.say(FINE, FINE)
    assert overdue.renewals == 1


@pytest.mark.parametrize("terms", [{"renew": False}, {"max_renewals": 5}])
def test_a_verification_uses_no_renewal_up(rig: Rig, terms: dict[str, int]) -> None:
    lease = rig.hold("a", 30.0, **terms)
    rig.go_on(1.0)
    reconnect(rig)
    assert rig.server.one("GET").names == ["a"]
    rig.say(b"$%d\r\n%b\r\n" % (len(lease.token), lease.token))
    assert lease.renewals == 0
    assert rig.believes(lease)


def test_a_server_that_still_loads_is_asked_again(rig: Rig) -> None:
    lease = rig.hold("a", 30.0)
    reconnect(rig)

    def load() -> None:
        rig.server.say(*[error("LOADING Redis is loading the dataset in memory") for _ in rig.server.take()])

    rig.go_on(2.0, load)
    assert rig.believes(lease)
    rig.go_on(1.0, rig.agree)
    assert lease.renewals == 1
    assert rig.stats().renewal_lag_max_s < 3.0  # counted from the reconnection, and not from the last renewal


def test_a_second_reconnection_begins_the_verification_anew() -> None:
    with Rig(batch_size=10) as rig:
        rig.hold_many(names(200), 30.0)
        rig.go_on(0.5)
        reconnect(rig)
        rig.server.take()
        reconnect(rig)
        seen: list[Command] = []

        def note() -> None:
            for command in rig.server.take():
                seen.append(command)
                rig.server.say(FINE)

        rig.go_on(0.5, note)
        assert sorted({name for command in seen for name in command.names}) == sorted(names(200))
