"""Invalidations: leases whose keys have changed are checked at once; nothing but the server's own word ends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engine.rig import error, names
from tests.engine.watched_rig import FLUSHED, WatchedRig, message
from wheel_lock.errors import LossReason
from wheel_lock.lease import State


@pytest.fixture
def rig() -> Iterator[WatchedRig]:
    with WatchedRig() as rig:
        yield rig


def test_invalidations_that_arrive_together_share_a_call(rig: WatchedRig) -> None:
    rig.hold_many(names(100))
    rig.settle()
    for name in names(50):
        del rig.keys[name.encode()]
        rig.feed.say(message(name))
    rig.serve()
    assert rig.took() == ["renew", "CACHING", "EXISTS"]
    assert len(rig.losses) == 50
    assert len(rig.held) == 50


@contextmanager
def flushed() -> Iterator[WatchedRig]:
    """An engine that has checked a hundred leases after a flush, so that the next flush is followed after a pause."""
    with WatchedRig(batch_size=10) as rig:
        rig.hold_many(names(100))
        rig.settle()
        rig.feed.say(FLUSHED)
        for _ in range(20):  # 0.2 s for the 100
            rig.clock.jump(0.01)
            rig.turn()
            rig.answer()
        yield rig


def test_flushes_in_a_row_that_concern_no_lock_are_followed_with_pauses() -> None:
    with flushed() as rig:
        rig.took()
        for _ in range(50):
            rig.feed.say(FLUSHED)
            rig.pass_time(0.001)
        assert rig.took().count("renew") <= 20
        rig.pass_time(3.0)
        assert rig.took().count("renew") >= 10  # the last of them is not forgotten


def test_changes_of_too_many_keys_in_a_second_are_registered_at_the_next_renewal(rig: WatchedRig) -> None:
    rig.hold_many(names(1200))
    rig.settle()
    rig.reported.clear()
    rig.invalidate(*names(500))
    assert len(rig.reported) == 500
    rig.invalidate(*names(1100)[500:])
    assert len(rig.reported) == 500
    rig.pass_time(10.0)
    assert len(rig.reported) == 1200


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


def test_a_key_that_is_changed_again_and_again_is_checked_at_a_bounded_rate(rig: WatchedRig) -> None:
    lease = rig.hold("a")
    rig.settle()
    for _ in range(500):
        rig.invalidate("a")
    assert rig.took().count("EXISTS") <= 100
    rig.pass_time(10.0)
    assert lease.state is State.HELD
    assert rig.registered() == [(b"a",)]  # by its renewal


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
