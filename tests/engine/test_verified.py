"""Another server has taken the place of the last one: what it says of leases that need no renewal, and of releases."""

from __future__ import annotations

import pytest

from tests.engine.support import NIL, Command, Rig, array, error
from wheel_lock.errors import LockServerError, LossReason
from wheel_lock.lease import State
from wheel_lock.net.connector import Connection

DOWN = "ERR Script attempted to execute a command while the cluster is down"


def swap_servers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the connection; the next one is to another server."""
    connect = rig.connector.connect

    def elsewhere(timeout_s: float) -> Connection:
        connection = connect(timeout_s)
        connection.server = ("elsewhere", "6379")
        return connection

    monkeypatch.setattr(rig.connector, "connect", elsewhere)
    rig.server.close()
    rig.turn()


def test_a_lease_that_was_extended_is_looked_at_and_not_cut_short(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = rig.hold("a", 3.0)
    rig.extend(lease, 60.0)
    rig.agree()
    rig.turn()
    deadline = lease.deadline
    swap_servers(rig, monkeypatch)
    seen: list[Command] = []
    rig.go_on(20.0, rig.knowing(lease, seen))
    assert [command.what for command in seen] == ["GET"]
    assert lease.deadline == deadline
    assert rig.believes(lease)
    rig.go_to(deadline + 10.0, rig.knowing(lease, seen))
    assert seen[1].what == "renew"  # when that prolongs it
    assert rig.believes(lease)


def test_a_lease_that_is_not_to_be_renewed_is_looked_at_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = rig.hold("a", 9.0, renew=False)
    deadline = lease.deadline
    rig.go_on(1.0)
    swap_servers(rig, monkeypatch)
    seen: list[Command] = []
    rig.go_on(10.0, rig.knowing(lease, seen))
    assert [command.what for command in seen] == ["GET"]
    assert lease.deadline == deadline
    assert rig.reasons == [("a", LossReason.RENEWAL_LIMIT)]


@pytest.mark.parametrize("text", ["BUSY Redis is busy", "LOADING Redis is loading", "MASTERDOWN Link is down"])
def test_a_server_that_cannot_answer_for_the_moment_is_asked_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    lease = rig.hold("a", 9.0, renew=False)
    rig.go_on(1.0)
    swap_servers(rig, monkeypatch)
    rig.go_on(0.1)
    assert rig.server.one("GET").names == ["a"]
    rig.say(error(text))
    rig.go_on(1.1)
    assert rig.believes(lease)
    assert rig.server.one("GET").names == ["a"]
    rig.say(NIL)
    assert rig.reasons == [("a", LossReason.KEY_GONE)]


def test_a_server_that_refuses_the_question_for_good_is_not_asked_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.hold("a", 9.0, renew=False)
    rig.go_on(1.0)
    swap_servers(rig, monkeypatch)
    rig.go_on(0.1)
    rig.server.one("GET")
    rig.say(error("NOPERM User app has no permissions to run the 'get' command"))
    rig.go_on(3.0)
    assert rig.server.take() == []


def test_an_extended_lease_that_the_new_server_does_not_know_is_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = rig.hold("a", 3.0)
    rig.extend(lease, 60.0)
    rig.agree()
    rig.turn()
    swap_servers(rig, monkeypatch)
    rig.go_on(0.3)
    rig.server.one("GET")
    rig.say(NIL)
    assert rig.reasons == [("a", LossReason.KEY_GONE)]


def test_a_bulk_release_that_fails_at_its_second_try_is_not_counted_as_done(rig: Rig) -> None:
    leases = rig.hold_many(["gone", "forbidden", "down", "released"], 30.0)
    future = rig.release_many(leases)
    rig.server.one("release_many")
    rig.server.close()  # without a reply
    rig.turn()
    rig.go_on(0.3)
    rig.server.one("release_many")
    rig.say(array(1, 0, 2, "NOPERM this user has no permissions", 3, DOWN))
    assert future.done
    assert isinstance(future.error, LockServerError)
    assert rig.stats().released == 2
    assert all(lease.state is State.RELEASED for lease in leases)
    assert rig.told == []
