"""Release: nothing is sent for a token after it, nothing of an old lease touches a new one."""

from __future__ import annotations

from tests.engine.rig import START, Rig, error, failure, integer
from wheel_lock.errors import LockServerError, LockTimeout


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
