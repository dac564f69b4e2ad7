"""Whatever is posted behind a release in parts finds all of it begun."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.requests.parts import MANY, half_released, post_close, post_release, released, turn_until
from tests.engine.rig import Rig, failure, names
from wheel_lock.engine.future import Future
from wheel_lock.errors import LockNotHeld, LockUnavailable, LossReason
from wheel_lock.lease import Owner, State

pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.mark.parametrize("halfway", [False, True])
@pytest.mark.parametrize("release_on_close", [False, True])
def test_a_close_behind_it_tells_of_no_loss_and_releases_nothing_again(release_on_close: bool, halfway: bool) -> None:
    with Rig(release_on_close=release_on_close, batch_size=5) as rig:
        kept = rig.hold("kept", 30.0)
        leases = rig.hold_many(names(MANY), 30.0)
        rig.server.take()
        future = half_released(rig, leases) if halfway else post_release(rig, leases)
        closed = post_close(rig)
        commands = turn_until(rig, lambda: closed.done)
        assert future.done
        assert future.result() == {}
        expected = Counter(names(MANY) + ["kept"] * release_on_close)
        assert released(commands) == expected
        assert rig.reasons == [("kept", LossReason.CONTEXT_CLOSED)]
        assert not rig.believes(kept)


def test_behind_a_close_it_begins_at_once_for_the_sweep_goes_on_without_messages() -> None:
    with Rig(batch_size=1) as rig:
        leases = rig.hold_many(names(MANY), 30.0)
        closed = post_close(rig)
        future = post_release(rig, leases)
        rig.timer.turn()
        assert {lease.state for lease in leases} == {State.LOST, State.RELEASING}
        lost = {lease.name for lease in leases if lease.state is State.LOST}
        turn_until(rig, lambda: closed.done)
        assert future.result() == dict.fromkeys(lost, LossReason.CONTEXT_CLOSED)
        assert {name for name, _ in rig.reasons} == lost


@pytest.mark.parametrize("halfway", [False, True])
def test_a_timer_that_is_stopped_begins_all_in_its_last_turn(rig: Rig, halfway: bool) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases) if halfway else post_release(rig, leases)
    rig.timer.stop()
    rig.timer.turn()
    failure(future, LockUnavailable, "stopped")
    assert {lease.state for lease in leases} == {State.RELEASED}
    assert rig.told == []


def test_so_are_those_that_wait_for_room_after_an_outage() -> None:
    with Rig(batch_size=1) as rig:
        owner = Owner()
        leases = rig.hold_many(names(4 * MANY), 30.0)
        for lease in leases:
            lease.owner = owner
        rig.be_away(11.0)
        rig.connector.refusal = None
        rig.go_on(5.0)
        assert {lease.state for lease in leases} == {State.OVERDUE, State.RENEWING}, "some calls are in flight"
        future = post_release(rig, leases)
        rig.timer.turn()
        owner.ended = True
        turn_until(rig, lambda: future.done)
        assert {lease.state for lease in leases} == {State.RELEASED}
        assert rig.told == []


def test_a_lease_cannot_be_released_or_handed_over_behind_it(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    half_released(rig, leases)
    exported: Future[None] = Future(lambda: None)
    again: Future[None] = Future(lambda: None)
    rig.timer.post(lambda: rig.engine.export(leases[-1], exported), rig.engine)
    rig.timer.post(lambda: rig.engine.release(leases[-2], again), rig.engine)
    turn_until(rig, lambda: exported.done and again.done)
    failure(exported, LockNotHeld)
    failure(again, LockNotHeld)
