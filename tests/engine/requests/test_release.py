"""Release: nothing is sent for a token after it, nothing of an old lease touches a new one."""

from __future__ import annotations

import pytest

from tests.engine.rig import FINE, NOSCRIPT, START, Rig, error, failure, integer
from wheel_lock.errors import LockLost, LockNotHeld, LockServerError, LockTimeout, LockUnavailable, LossReason
from wheel_lock.lease import State


def test_a_release_is_owner_checked_and_completes_when_it_is_answered(rig: Rig) -> None:
    lease = rig.hold("a")
    future = rig.release(lease)
    assert not rig.believes(lease)  # from the moment at which the holder lets go
    assert not future.done
    command = rig.server.one("release")
    assert command.pairs == [(b"a", lease.token)]
    rig.say(integer(1))
    assert future.result() is None
    assert lease.state is State.RELEASED
    assert rig.told == []
    assert (rig.stats().held, rig.stats().released, rig.stats().acquired, rig.stats().lost) == (0, 1, 1, 0)


@pytest.mark.parametrize("moment", [0.2, 1.0, 1.4])
def test_nothing_is_sent_for_a_token_after_its_release_was_answered(rig: Rig, moment: float) -> None:
    lease = rig.hold("a")
    rig.hold("b")
    rig.go_on(moment)
    future = rig.release(lease)
    rig.go_on(0.3, rig.agree)
    assert future.done
    sent = len(rig.everything_sent())
    rig.go_on(10.0, rig.agree)
    assert lease.token not in rig.everything_sent()[sent:]
    assert rig.told == []


def test_a_lease_released_in_between_is_not_in_the_call_that_is_repeated_in_full(rig: Rig) -> None:
    first, second = rig.hold_many(["first", "second"])
    rig.go_on(1.0)
    assert rig.server.one("renew").names == ["first", "second"]
    rig.release(first)
    rig.reply("release", NOSCRIPT, integer(1))
    repeated = rig.server.one("renew")
    assert repeated.use_eval
    assert repeated.names == ["second"]
    rig.say(FINE)
    assert second.renewals == 1
    assert first.state is State.RELEASED


@pytest.mark.parametrize(("reply", "reason"), [(0, LossReason.KEY_GONE), (-1, LossReason.TAKEN)])
def test_a_release_of_what_was_lost_says_so_and_tells_it_once(rig: Rig, reply: int, reason: LossReason) -> None:
    lease = rig.hold("a")
    future = rig.release(lease)
    rig.say(integer(reply))
    failure(future, LockLost, str(reason))
    assert lease.state is State.LOST
    rig.server.take()
    failure(rig.release(lease), LockLost, str(reason))
    assert rig.server.take() == []
    assert rig.reasons == [("a", reason)]


@pytest.mark.parametrize("reply", [integer(0), integer(-1)])
def test_a_release_that_is_sent_again_takes_a_missing_key_for_its_own_work(rig: Rig, reply: bytes) -> None:
    lease = rig.hold("a")
    future = rig.release(lease)
    rig.reconnect()
    rig.reply("release", reply)
    assert future.result() is None
    assert lease.state is State.RELEASED
    assert rig.told == []


def test_a_refused_release_is_an_error_and_the_lease_is_over(rig: Rig) -> None:
    lease = rig.hold("a")
    future = rig.release(lease)
    rig.say(error("READONLY You can't write against a read only replica."))
    failure(future, LockServerError, "READONLY")
    assert not rig.believes(lease)
    sent = len(rig.everything_sent())
    rig.go_on(10.0)
    assert len(rig.everything_sent()) == sent
    assert rig.told == []


def test_an_unanswered_release_times_out_and_nothing_is_sent_after_that(rig: Rig) -> None:
    lease = rig.hold("a")
    future = rig.release(lease)
    rig.launch.slow = True
    rig.go_to(START + 4.9)
    assert not future.done
    rig.go_to(START + 5.01)
    failure(future, LockTimeout, r"did not answer within 5 s \(lock 'a'\)")
    sent = rig.everything_sent()
    assert sent.count(lease.token) == 2  # the acquire and the release
    rig.server.close()
    rig.launch.slow = False
    rig.launch.go_on()
    rig.go_on(10.0)
    assert rig.everything_sent() == sent


def test_a_release_without_a_connection_is_given_up_in_time_and_not_sent_later(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.be_away()
    future = rig.release(lease)
    rig.go_on(5.1)
    failure(future, LockUnavailable, "nobody listens")
    rig.connector.refusal = None
    attempt = rig.acquire("b")
    rig.go_on(1.0)
    assert attempt.lease.state is State.PENDING
    assert [command.names for command in rig.server.take()] == [["b"]]


def test_a_second_release_is_refused_without_a_word_to_the_server(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.release(lease)
    rig.server.one("release")
    again = rig.release(lease)
    failure(again, LockNotHeld)
    rig.say(integer(1))
    after = rig.release(lease)
    failure(after, LockNotHeld)
    assert rig.server.take() == []


def test_a_finaliser_that_comes_after_a_release_has_begun_changes_nothing(rig: Rig) -> None:
    # An interrupted release leaves a lock object that is collected while the release is under way.
    lease = rig.hold("a")
    other = rig.hold("b")
    future = rig.release(lease)
    rig.post(lambda: rig.engine.abandon(lease))
    rig.say(integer(1))
    assert future.result() is None
    assert rig.told == []
    assert rig.connector.attempts == 1
    assert rig.believes(other)
