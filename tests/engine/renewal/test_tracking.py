"""Tracking: when a server is asked to report changes of keys, what it may answer, and what becomes of the connections."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.rig import BUSY, NOSCRIPT, REFUSED, error, integer, names
from tests.engine.watched_rig import WatchedRig, message
from tests.support.logged import Log
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease, State

NOPERM = error("NOPERM this user has no permissions to run the 'client|tracking' command")


RIG = WatchedRig


def _extend_while_the_connection_is_replaced(rig: WatchedRig, lease: Lease) -> None:
    rig.replies["extend"] = None
    rig.connector.refusal = REFUSED
    rig.extend(lease, 60.0, replace=True)
    rig.serve()
    assert lease.state is State.EXTENDING
    rig.feed.close()
    rig.pass_time(0.3)  # the connection for invalidations is first, so the server is asked on the other one at once
    del rig.replies["extend"]
    rig.connector.refusal = None
    rig.withhold()
    while not rig.tracked():
        rig.pass_time(0.05)
    rig.pass_time(0.05)
    assert lease.state is State.EXTENDING
    rig.deliver()


def _renew_by_a_script_that_is_unknown(rig: WatchedRig, lease: Lease) -> None:
    rig.replies["renew"] = NOSCRIPT
    rig.once["EXISTS"] = lambda: rig.replies.pop("renew")
    rig.pass_time(10.5)
    assert lease.renewals >= 1


def _reply_late(rig: WatchedRig, lease: Lease) -> None:
    rig.withhold()
    rig.extend(lease, 5.0)
    rig.serve()
    rig.jump(3.0)  # its caller waits no longer
    rig.deliver()


CHANGES: dict[str, Callable[[WatchedRig, Lease], object]] = {
    "a renewal": lambda rig, lease: rig.pass_time(10.5),
    "a renewal that is sent again": _renew_by_a_script_that_is_unknown,
    "a check": lambda rig, lease: rig.invalidate("a"),
    "an extension": lambda rig, lease: rig.extend(lease, 5.0),
    "an extension by more than the timeout": lambda rig, lease: rig.extend(lease, 60.0),
    "another time-to-live": lambda rig, lease: rig.extend(lease, 3.0, replace=True),
    "another time-to-live, longer": lambda rig, lease: rig.extend(lease, 60.0, replace=True),
    "an extension that is answered late": _reply_late,
    "an extension that is sent on the next connection": _extend_while_the_connection_is_replaced,
    "the next connection": lambda rig, lease: rig.server.close(),
    "the next connection for invalidations": lambda rig, lease: rig.feed.close(),
}


@pytest.mark.parametrize("terms", [{}, {"max_renewals": 100}], ids=["renewed", "limited"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_key_is_registered_behind_every_command_that_changes_it(
    rig: WatchedRig, change: str, terms: dict[str, int]
) -> None:
    lease = rig.hold_settled("a", **terms)
    CHANGES[change](rig, lease)
    rig.pass_time(1.0)
    assert rig.stats().watching
    assert rig.reported == {b"a"}
    rig.keys.clear()
    rig.invalidate("a")
    assert rig.reasons == [("a", LossReason.KEY_GONE)]


@pytest.mark.parametrize("reply", [NOPERM, error("ERR unknown command 'CLIENT'")])
def test_a_refusal_costs_only_the_feature_and_is_logged_once(rig: WatchedRig, log: Log, reply: bytes) -> None:
    rig.replies["TRACKING"] = reply
    leases = rig.hold_many(names(3), 30.0)
    rig.pass_time(31.0)
    assert not rig.stats().watching
    assert rig.feed.hung_up
    assert [lease.renewals for lease in leases] == [3, 3, 3]
    assert len(rig.tracked()) == 1
    assert len(log.said("does not report changes of locks")) == 1
    assert rig.losses == []


@pytest.mark.parametrize(("command", "asked"), [("ID", 0), ("SUBSCRIBE", 0), ("EXISTS", 1), ("CACHING", 1)])
def test_a_missing_right_is_a_refusal_and_one_to_the_feed_asks_for_nothing(
    rig: WatchedRig, log: Log, command: str, asked: int
) -> None:
    rig.replies[command] = NOPERM
    rig.hold("a")
    rig.pass_time(1.0)
    assert not rig.stats().watching
    assert len(rig.tracked()) == asked
    assert rig.feed.hung_up
    assert rig.connector.listeners.attempts == 1
    (line,) = log.lines
    assert "does not report changes of locks" in line[1]


@pytest.mark.parametrize("command", ["TRACKING", "CACHING", "EXISTS"])
def test_a_server_that_hangs_up_at_a_command_is_asked_twice_and_no_more(
    rig: WatchedRig, log: Log, command: str
) -> None:
    rig.replies[command] = None
    lease = rig.hold("a")
    rig.pass_time(60.0)
    assert len(rig.connector.servers) == 3
    assert len(rig.tracked()) == 2
    assert lease.state is State.HELD
    assert lease.renewals >= 5
    assert len(log.said("it hangs up")) == 1
    assert not rig.stats().watching
    rig.hold("b")
    rig.pass_time(1.0)
    assert rig.tracked() == []
    assert rig.feed.hung_up


@pytest.mark.parametrize("command", ["ID", "SUBSCRIBE"])
def test_a_feed_that_is_hung_up_before_it_is_ready_is_given_up(rig: WatchedRig, log: Log, command: str) -> None:
    rig.replies[command] = None
    lease = rig.hold("a")
    rig.pass_time(60.0)
    assert len(rig.connector.listeners.servers) == 2
    assert len(rig.connector.servers) == 1
    assert rig.tracked() == []
    assert lease.renewals >= 5
    assert len(log.said("it hangs up")) == 1


def test_a_feed_that_cannot_be_connected_is_tried_with_pauses_and_logged_once(rig: WatchedRig, log: Log) -> None:
    rig.connector.listeners.refusal = REFUSED
    rig.hold("a")
    rig.pass_time(60.0)
    assert 5 < rig.connector.listeners.attempts < 60
    assert len(log.said("does not report changes of locks")) == 1
    rig.connector.listeners.refusal = None
    rig.pass_time(10.0)
    assert rig.stats().watching
    assert len(log.said("reports changes of locks again")) == 1


@pytest.mark.parametrize("command", ["ID", "SUBSCRIBE", "TRACKING"])
def test_a_server_that_is_busy_is_asked_again(rig: WatchedRig, log: Log, command: str) -> None:
    rig.replies[command] = BUSY
    rig.hold("a")
    rig.pass_time(0.9)
    assert len(rig.tracked()) <= 1
    del rig.replies[command]
    assert not rig.stats().watching
    rig.pass_time(0.2)
    assert rig.stats().watching
    assert log.lines == []


def test_an_id_that_the_server_does_not_know_is_asked_for_again_a_few_times(rig: WatchedRig, log: Log) -> None:
    rig.replies["TRACKING"] = error("ERR The client ID you want redirect to does not exist")
    rig.hold("a")
    rig.pass_time(1.0)
    assert len(rig.tracked()) == 4
    assert len(log.said("does not report changes of locks")) == 1


def test_a_reply_that_is_none_to_the_question_drops_the_connection(rig: WatchedRig) -> None:
    rig.replies["TRACKING"] = integer(1)
    lease = rig.hold("a")
    del rig.replies["TRACKING"]
    rig.pass_time(1.0)
    assert len(rig.connector.servers) == 2
    assert lease.state is State.HELD
    assert rig.stats().watching


def test_a_service_that_routes_calls_by_their_keys_is_not_asked(log: Log) -> None:
    with WatchedRig(declare_keys=True) as rig:
        lease = rig.hold("a")
        rig.pass_time(11.0)
        assert rig.tracked() == []
        assert lease.renewals == 1
        assert len(log.said("routes calls by their keys")) == 1


def test_the_feed_is_closed_when_nothing_has_been_held_for_long_and_comes_back(rig: WatchedRig) -> None:
    rig.release(rig.hold("a"))
    rig.pass_time(45.0)
    assert rig.feed.hung_up
    assert not rig.stats().watching
    rig.hold("b")
    rig.pass_time(0.1)
    assert rig.stats().watching
    assert rig.connector.listeners.attempts == 2


def test_a_feed_that_is_older_than_a_trouble_is_made_anew(rig: WatchedRig) -> None:
    rig.hold_settled("a")
    feed = rig.feed
    rig.server.close()
    rig.pass_time(1.0)
    assert feed.hung_up
    assert rig.stats().watching


# Invalidations: nothing but the server's own word ends a lease


def test_a_change_behind_a_renewal_in_flight_is_checked_after_its_reply(rig: WatchedRig) -> None:
    lease = rig.hold_settled("a")
    rig.withhold()
    rig.pass_time(10.0)
    assert lease.state is State.RENEWING
    del rig.keys[b"a"]
    rig.feed.say(message("a"))
    rig.turn()
    rig.deliver()
    rig.pass_time(0.1)
    assert rig.reasons == [("a", LossReason.KEY_GONE)]


def test_a_lease_whose_key_is_granted_to_another_one_is_checked(rig: WatchedRig) -> None:
    rig.hold_settled("a")
    del rig.keys[b"a"]
    rig.hold("a")
    rig.pass_time(0.1)
    assert rig.reasons == [("a", LossReason.TAKEN)]


def test_a_registration_that_is_refused_for_the_moment_is_repeated(rig: WatchedRig) -> None:
    rig.replies["EXISTS"] = error("BUSY Redis is busy running a script.")
    rig.hold("a")
    rig.pass_time(0.1)
    assert len(rig.registered()) == 1
    del rig.replies["EXISTS"]
    rig.pass_time(1.1)
    assert rig.registered() == [(b"a",)]
    assert rig.stats().watching


def test_published_messages_of_users_are_ignored(rig: WatchedRig) -> None:
    rig.hold_settled("a")
    rig.feed.say(b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n$1\r\na\r\n")
    rig.serve()
    assert rig.took() == []
    assert rig.stats().watching


def test_a_message_that_lists_no_keys_drops_the_feed(rig: WatchedRig) -> None:
    lease = rig.hold_settled("a")
    rig.feed.say(b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n:5\r\n")
    rig.pass_time(1.0)
    assert rig.connector.listeners.attempts == 2
    assert rig.stats().watching
    assert lease.state is State.HELD


def test_a_check_of_a_lease_with_counted_renewals_is_none_of_them(rig: WatchedRig) -> None:
    lease = rig.hold_settled("a", max_renewals=3)
    rig.invalidate("a")
    rig.pass_time(0.1)
    assert lease.renewals == 0
