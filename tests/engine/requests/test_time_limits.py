"""Callers' own time limits: they bound the whole call, whatever has become of the server, and concern nobody else."""

from __future__ import annotations

import pytest

from tests.engine.rig import FINE, NIL, OK, REFUSED, START, TICK_S, Rig, names
from tests.engine.waiting_rig import Wait, WaitingRig
from wheel_lock.errors import LockTimeout, LockUnavailable
from wheel_lock.lease import State

LEAST_S = 0.1  # what a try is given in any case


def ends_at(rig: WaitingRig, wait: Wait) -> float:
    """When a wait ends, as it does within a minute, while the server goes on as it is."""
    while not wait.future.done:
        assert rig.now < START + 60
        rig.go_on(TICK_S)
    return rig.now - START


def warm(rig: WaitingRig) -> None:
    """Have a connection that stands, and nothing held."""
    lease = rig.hold("warm-up")
    rig.release(lease)
    rig.agree()


@pytest.mark.parametrize("limit_s", [0.5, 3.0])
def test_a_server_that_cannot_be_reached_takes_no_longer_than_the_limit(rig: WaitingRig, limit_s: float) -> None:
    rig.connector.refusal = REFUSED
    wait = rig.wait("a", blocking_timeout=limit_s)
    assert limit_s <= ends_at(rig, wait) + 1e-6 <= limit_s + 3 * TICK_S
    assert isinstance(wait.error, LockUnavailable)
    assert wait.error.__cause__ is REFUSED
    assert "nobody listens" in str(wait.error)


def test_a_server_that_is_silent_takes_no_longer_than_the_limit_and_its_grant_is_undone(rig: WaitingRig) -> None:
    warm(rig)
    wait = rig.wait("a", 30.0, blocking_timeout=0.5)
    asked = rig.server.one("SET")
    assert 0.5 <= ends_at(rig, wait) + 1e-6 <= 0.53
    assert isinstance(wait.error, LockTimeout)
    assert "within 0.5 s" in str(wait.error)
    assert rig.server.one("release_many").pairs == asked.pairs  # on the same connection, so it comes after the grant
    rig.say(OK, FINE)
    rig.assert_clean()


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("limit_s", [0.0, 0.05])
def test_the_smallest_limits_end_soon_but_do_not_cut_a_round_trip_off(
    rig: WaitingRig, limit_s: float, answered: bool
) -> None:
    warm(rig)
    wait = rig.wait("a", blocking_timeout=limit_s)
    if answered:
        rig.go_on(0.08)
        rig.say(OK)
        assert wait.granted
    else:
        assert ends_at(rig, wait) <= LEAST_S + 0.03
        assert isinstance(wait.error, LockTimeout)


def test_who_comes_while_another_asks_for_the_first_time_keeps_to_its_own_limit(rig: WaitingRig) -> None:
    warm(rig)
    patient = rig.wait("a")
    hasty = rig.wait("a", blocking_timeout=0.3)
    hastier = rig.wait("a", blocking_timeout=0.0)
    assert ends_at(rig, hastier) <= LEAST_S + 0.03
    assert isinstance(hastier.error, LockTimeout)
    assert 0.3 <= ends_at(rig, hasty) + 1e-6 <= 0.33
    assert isinstance(hasty.error, LockTimeout)
    assert patient.goes_on
    rig.say(OK)
    assert patient.granted


@pytest.mark.parametrize("reply", [NIL, OK])
def test_callers_whose_shared_first_try_is_answered_behind_their_limit_are_refused(
    rig: WaitingRig, reply: bytes
) -> None:
    rig.launch.slow = True
    first, other = [rig.wait("a", blocking_timeout=0.2) for _ in range(2)]
    rig.go_on(0.3)
    rig.connect()
    rig.server.one("SET")
    rig.say(reply)
    rig.go_on(0.02)
    assert first.granted is (reply == OK)
    assert other.refused, "the server has answered"


def test_a_bulk_acquire_takes_no_longer_than_its_limit_and_leaves_nothing() -> None:
    with Rig(batch_size=2) as rig:
        rig.hold("warm-up", 30.0)
        attempt = rig.acquire_many(names(6), limit_s=0.5)
        assert len(rig.server.take()) == 3
        rig.say(FINE)
        rig.go_on(0.48)
        assert not attempt.future.done
        rig.go_on(0.05)
        assert isinstance(attempt.future.error, LockTimeout)
        released = [name for command in rig.server.take() for name in command.names]
        assert sorted(released) == sorted(names(6))
        assert all(lease.state > State.EXTENDING for lease in attempt.leases)
        assert rig.acquiring == 0
        assert rig.ready


def test_the_limit_of_a_bulk_acquire_that_is_done_means_nothing(rig: WaitingRig) -> None:
    attempt = rig.acquire_many(names(3), 30.0, limit_s=0.5)
    rig.agree()
    assert attempt.future.done
    rig.go_on(1.0, rig.agree)
    assert len(rig.held) == 3
