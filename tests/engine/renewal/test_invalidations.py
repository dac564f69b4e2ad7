"""Invalidations: leases whose keys have changed are checked at once; nothing but the server's own word ends them."""

from __future__ import annotations

from tests.engine.rig import error
from tests.engine.watched_rig import WatchedRig, message
from wheel_lock.errors import LossReason
from wheel_lock.lease import State

RIG = WatchedRig


def test_a_change_behind_a_renewal_in_flight_is_checked_after_its_reply(rig: WatchedRig) -> None:
    lease = rig.hold("a")
    rig.settle()
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
    rig.hold("a")
    rig.settle()
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
    rig.hold("a")
    rig.settle()
    rig.feed.say(b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n$1\r\na\r\n")
    rig.serve()
    assert rig.took() == []
    assert rig.stats().watching


def test_a_message_that_lists_no_keys_drops_the_feed(rig: WatchedRig) -> None:
    lease = rig.hold("a")
    rig.settle()
    rig.feed.say(b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n:5\r\n")
    rig.pass_time(1.0)
    assert rig.connector.listeners.attempts == 2
    assert rig.stats().watching
    assert lease.state is State.HELD


def test_a_check_of_a_lease_with_counted_renewals_is_none_of_them(rig: WatchedRig) -> None:
    lease = rig.hold("a", max_renewals=3)
    rig.settle()
    rig.invalidate("a")
    rig.pass_time(0.1)
    assert lease.renewals == 0
