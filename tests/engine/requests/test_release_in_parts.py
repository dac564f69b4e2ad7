"""A release of many leases begins in parts, a turn each, and is sent meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.requests.parts import MANY, PART, half_released, post_release, released, turn_until
from tests.engine.rig import Command, Rig, names
from wheel_lock.lease import State

pytestmark = pytest.mark.usefixtures("small_parts")


def test_each_turn_begins_one_part_and_each_lease_is_released_once(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = post_release(rig, leases)
    commands: list[Command] = []
    for turns in range(1, 6):
        rig.timer.turn()
        commands += rig.server.agree()
        assert sum(lease.state is not State.HELD for lease in leases) == turns * PART
    commands += turn_until(rig, lambda: future.done)
    assert future.result() == {}
    assert released(commands) == Counter(names(MANY))
    assert rig.told == []
    assert not rig.held
    assert rig.stats().released == MANY


def test_what_is_due_between_the_parts_is_renewed_also_if_it_is_to_be_released(rig: Rig) -> None:
    kept = rig.hold("kept", 3.0)
    leases = rig.hold_many(names(MANY), 3.0)
    rig.server.take()
    future = half_released(rig, leases)
    rig.clock.jump(1.1)
    commands = turn_until(rig, lambda: future.done)
    renewed = [name for command in commands if command.what == "renew" for name in command.names]
    assert "kept" in renewed
    assert set(renewed) > {"kept", names(MANY)[-1]}
    assert released(commands) == Counter(names(MANY))
    assert rig.told == []
    assert rig.believes(kept)


# Connections


@pytest.mark.rig(watch=True)
def test_watched_locks_are_forgotten_with_their_parts(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = post_release(rig, leases)
    turn_until(rig, lambda: future.done)
    assert not rig.held
    assert rig.engine.router._watched is not None
    assert rig.engine.router._watched.by_key == {}
