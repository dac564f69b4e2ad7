"""Extend: the caller changes the time-to-live, and no call that is under way or fails prolongs the lease."""

from __future__ import annotations

import pytest

from tests.engine.rig import NOSCRIPT, Rig, failure, integer
from wheel_lock.errors import LockLost, LockUnavailable, WheelLockError
from wheel_lock.lease import State
from wheel_lock.options import MAX_SECONDS


def test_an_extension_is_sent_as_text_where_its_script_is_not_known(rig: Rig) -> None:
    future = rig.extend(rig.hold("a"), 10.0, replace=True)
    rig.reply("extend", NOSCRIPT)
    assert rig.server.one("extend").use_eval
    rig.say(integer(10_000))
    assert future.result() is None


@pytest.mark.parametrize("renew", [True, False])
def test_an_extension_that_the_server_finds_too_long_changes_nothing(rig: Rig, renew: bool) -> None:
    lease = rig.hold("a", 30.0, renew=renew)
    deadline = lease.deadline
    future = rig.extend(lease, MAX_SECONDS - 100.0)
    rig.reply("extend", integer(-2))
    assert isinstance(future.error, ValueError)
    assert "additional_time" in str(future.error)
    assert "999999900 s" in str(future.error)
    assert lease.deadline == deadline
    assert rig.is_valid(lease)
    rig.go_on(25.0, rig.agree)
    assert lease.state is State.HELD
    assert rig.is_valid(lease)
    assert lease.renewals == (3 if renew else 0)  # at once, and when due
    assert rig.connector.attempts == 1
    assert rig.losses == []


@pytest.mark.parametrize(("answer_ms", "seconds"), [(8_000, 8.0), (2_000, 3.0)])
def test_an_extension_is_valid_for_what_the_server_says_and_for_no_less_than_before(
    rig: Rig, answer_ms: int, seconds: float
) -> None:
    lease = rig.hold("a", renew=False)
    rig.extend(lease, 1.0)
    rig.say(integer(answer_ms))
    assert lease.deadline == pytest.approx(rig.now + seconds, abs=0.1)


def test_what_is_released_while_it_is_extended_is_released_once(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.extend(lease, 5.0)
    rig.release(lease)
    assert rig.whats() == ["extend", "release"]
    rig.say(integer(8_000))
    assert rig.server.take() == []


def test_extending_twice_at_once_is_refused(rig: Rig) -> None:
    lease = rig.hold("a")
    first = rig.extend(lease, 5.0)
    failure(rig.extend(lease, 7.0), WheelLockError, "being extended already")
    rig.say(integer(8_000))
    assert first.result() is None


def test_a_broken_extend_that_adds_is_not_sent_again(rig: Rig) -> None:
    lease = rig.hold("a")
    future = rig.extend(lease, 5.0)
    rig.hang_up()
    failure(future, LockUnavailable)
    assert rig.is_valid(lease)
    rig.go_on(0.1)
    assert rig.whats() == ["renew"]


def test_a_broken_extend_is_not_sent_again_for_a_lease_that_was_lost_meanwhile(rig: Rig) -> None:
    rig.hold("warm-up", 60.0)
    lease = rig.hold("a", renew=False)
    future = rig.extend(lease, 3.0, replace=True)
    rig.launch.slow = True
    rig.hang_up()
    rig.go_on(3.1)
    assert lease.state is State.LOST
    rig.launch.go_on()
    rig.turn()
    assert "extend" not in rig.whats()
    failure(future, LockLost)


def test_what_lapses_while_it_is_extended_cannot_be_released(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.extend(lease, 5.0)
    rig.clock.jump(4.0)  # the alarms of this turn come later
    assert isinstance(rig.engine.leases.check_owned(lease), LockLost)
    assert lease.state is State.LOST


def test_an_extension_that_was_not_executed_ends_with_its_lease(rig: Rig) -> None:
    lease = rig.hold("a", 1.0)
    future = rig.extend(lease, 5.0)
    rig.be_silent(1.1)
    assert lease.state is State.LOST
    rig.say(NOSCRIPT)
    failure(future, LockLost)
