"""A release of many leases begins in parts, a turn each, and is sent meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.engine.requests.parts import MANY, PART, half_released, post_release, released, turn_until
from tests.engine.rig import FINE, OK, TAKEN, Command, Rig, array, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.lease import Lease, State
from wheel_lock.options import lock_options

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


def test_the_releases_of_two_threads_about_the_same_locks_release_each_once(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    futures = [post_release(rig, leases[:-PART]), post_release(rig, leases[::-1])]
    commands = turn_until(rig, lambda: all(future.done for future in futures))
    assert released(commands) == Counter(names(MANY))
    assert [future.result() for future in futures] == [{}, {}]


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


def test_replies_are_read_between_the_parts_of_which_each_is_sent_as_it_begins(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    asked = rig.acquire("another")
    future = half_released(rig, leases)
    assert [command.names for command in rig.server.take()] == [["another"], names(PART)]
    rig.server.say(OK, FINE)
    rig.timer.turn()
    assert asked.future.done
    assert {lease.state for lease in leases[:PART]} == {State.RELEASED}
    assert {lease.state for lease in leases[2 * PART :]} == {State.HELD}
    assert rig.server.one("release_many").names == names(MANY)[PART : 2 * PART]
    rig.server.say(FINE)
    turn_until(rig, lambda: future.done)
    assert rig.stats().released == MANY


# Undoing an acquire


def begun_by_turn(rig: Rig, leases: list[Lease], reached: Callable[[], bool]) -> list[int]:
    """Turn until the end; return the numbers of leases that were not held any more after each turn."""
    begun: list[int] = []
    while not reached():
        rig.timer.turn()
        begun.append(sum(lease.state is not State.HELD for lease in leases))
        rig.server.agree()
    return begun


def test_so_is_one_of_all_or_nothing_and_its_caller_is_told_at_the_end(rig: Rig) -> None:
    leases = [rig.lease(name, 30.0) for name in names(MANY + 1)]
    future: Future[None] = Future(lambda: None)
    bulk = AcquireMany(rig.engine.leases, lock_options(30.0), future, all_or_nothing=True)
    for work in (partial(bulk.begin, len(leases)), partial(bulk.add, leases), bulk.seal):
        rig.post(work)
    assert rig.server.one("acquire_many").names == names(MANY + 1)
    rig.server.say(array(MANY + 1, TAKEN))
    begun = begun_by_turn(rig, leases[:MANY], lambda: future.done)
    assert begun[:4] == [2 * PART, 3 * PART, 4 * PART, 5 * PART]
    assert {lease.state for lease in leases} == {State.RELEASED, State.REFUSED}
    assert rig.told == []
    assert future.error is None


# Connections


@pytest.mark.rig(watch=True)
def test_watched_locks_are_forgotten_with_their_parts(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = post_release(rig, leases)
    turn_until(rig, lambda: future.done)
    assert not rig.held
    assert rig.engine.router._watched is not None
    assert rig.engine.router._watched.by_key == {}
