"""After a reconnection the server is asked about everything at once: it may have come back empty."""

from __future__ import annotations

import pytest

from tests.engine.rig import FINE, NIL, Command, Rig, array, error, names
from wheel_lock.errors import LockServerError, LossReason
from wheel_lock.lease import State

DOWN = "ERR Script attempted to execute a command while the cluster is down"
INTERVAL_S = 10.0  # of leases of 30 s


def test_a_lease_keeps_its_due_tick_and_its_lag_is_not_counted(rig: Rig) -> None:
    lease = rig.hold("a", 30.0)
    due = lease.tick
    rig.go_on(4.0)
    rig.reconnect()
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
        rig.reconnect()
        calls = rig.server.take()
        assert [command.what for command in calls] == ["renew"] * 8
        rig.go_on(0.6)
        due = rig.server.take()
        assert ["urgent"] in [command.names for command in due]
        rig.server.say(FINE * (len(calls) + len(due)))
        rig.go_on(0.3, rig.agree)
        assert urgent.renewals == 1
        assert rig.stats().renewed >= 1_001


@pytest.mark.parametrize("terms", [{"renew": False}, {"max_renewals": 5}])
def test_a_verification_uses_no_renewal_up(rig: Rig, terms: dict[str, int]) -> None:
    lease = rig.hold("a", 30.0, **terms)
    rig.go_on(1.0)
    rig.reconnect()
    assert rig.server.one("GET").names == ["a"]
    rig.say(b"$%d\r\n%b\r\n" % (len(lease.token), lease.token))
    assert lease.renewals == 0
    assert rig.believes(lease)


def swap_servers(rig: Rig) -> None:
    """Break the connection; the next one is to another server."""
    rig.connector.address = ("elsewhere", "6379")
    rig.hang_up()


def test_a_lease_that_was_extended_is_looked_at_and_not_cut_short(rig: Rig) -> None:
    lease = rig.hold("a", 3.0)
    rig.extend(lease, 60.0)
    rig.agree()
    deadline = lease.deadline
    swap_servers(rig)
    seen: list[Command] = []
    rig.go_on(20.0, rig.knowing(lease, seen))
    assert [command.what for command in seen] == ["GET"]
    assert lease.deadline == deadline
    assert rig.believes(lease)
    rig.go_to(deadline + 10.0, rig.knowing(lease, seen))
    assert seen[1].what == "renew"  # when that prolongs it
    assert rig.believes(lease)


@pytest.mark.parametrize("text", ["BUSY Redis is busy", "LOADING Redis is loading", "MASTERDOWN Link is down"])
def test_a_server_that_cannot_answer_yet_is_asked_again(rig: Rig, text: str) -> None:
    lease = rig.hold("a", 9.0, renew=False)
    rig.go_on(1.0)
    swap_servers(rig)
    rig.go_on(0.1)
    assert rig.server.one("GET").names == ["a"]
    rig.say(error(text))
    rig.go_on(1.1)
    assert rig.believes(lease)
    assert rig.server.one("GET").names == ["a"]
    rig.say(NIL)
    assert rig.reasons == [("a", LossReason.KEY_GONE)]


def test_a_bulk_release_that_fails_at_its_second_try_is_not_counted_as_done(rig: Rig) -> None:
    leases = rig.hold_many(["gone", "forbidden", "down", "released"], 30.0)
    future = rig.release_many(leases)
    rig.server.one("release_many")
    rig.server.close()  # without a reply
    rig.turn()
    rig.go_on(0.3)
    rig.reply("release_many", array(1, 0, 2, "NOPERM this user has no permissions", 3, DOWN))
    assert future.done
    assert isinstance(future.error, LockServerError)
    assert rig.stats().released == 2
    assert all(lease.state is State.RELEASED for lease in leases)
    assert rig.told == []
