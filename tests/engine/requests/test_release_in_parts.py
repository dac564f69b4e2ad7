"""A release of many leases begins in parts, a turn each: nothing that comes in between keeps one of them held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.engine.rig import Command, Rig, breaking, failure, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.engine.requests.bulk import BulkBatch, BulkOperation
from wheel_lock.errors import LockNotHeld, LockUnavailable, LossReason
from wheel_lock.lease import Lease, State, ThreadOwner

PART = 10
MANY = 5 * PART


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a release in parts is ten leases."""
    monkeypatch.setattr(bulk_operations, "LEASES_A_TURN", PART)


def post_release(rig: Rig, leases: list[Lease]) -> Future[Any]:
    future: Future[Any] = Future(lambda: None)
    rig.timer.post(partial(rig.engine.release_many, leases, future), rig.engine)
    return future


def half_released(rig: Rig, leases: list[Lease]) -> Future[Any]:
    """Post a release and turn once, so that one part has begun."""
    future = post_release(rig, leases)
    rig.timer.turn()
    assert [lease.state for lease in leases] == [State.RELEASING] * PART + [State.HELD] * (len(leases) - PART)
    return future


def turn_until(rig: Rig, reached: Callable[[], bool]) -> list[Command]:
    """Have the server agree to everything, turn by turn; return all commands."""
    commands: list[Command] = []
    for _ in range(100):
        commands += rig.server.agree()
        rig.timer.turn()
        if reached():
            return commands
    raise AssertionError("not within 100 turns")


def turn_times(rig: Rig, turns: int) -> None:
    for _ in range(turns):
        rig.timer.turn()


def released(commands: list[Command]) -> Counter[str]:
    return Counter(name for command in commands if command.what.startswith("release") for name in command.names)


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
    assert rig.losses == []
    assert not rig.held
    assert rig.stats().released == MANY


@pytest.mark.parametrize("halfway", [False, True])
def test_a_timer_that_is_stopped_begins_all_in_its_last_turn(rig: Rig, halfway: bool) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases) if halfway else post_release(rig, leases)
    rig.timer.stop()
    rig.timer.turn()
    failure(future, LockUnavailable, "stopped")
    assert {lease.state for lease in leases} == {State.RELEASED}
    assert rig.losses == []


def test_so_are_those_that_wait_for_room_after_an_outage() -> None:
    with Rig(batch_size=1) as rig:
        owner = ThreadOwner()
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
        assert rig.losses == []


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


def test_losses_are_reported_also_if_those_behind_them_are_not_marked(rig: Rig) -> None:
    leases = rig.hold_many(names(4))
    with breaking(rig.engine.leases, "unhold", nth=3), pytest.raises(ZeroDivisionError):
        rig.engine.leases.mark_lost(leases, LossReason.ABANDONED)
    assert rig.reasons == [(name, LossReason.ABANDONED) for name in names(2)]


def test_a_failure_in_a_part_loses_the_rest_and_no_caller_waits(failing: Rig) -> None:
    leases = failing.hold_many(names(MANY), 30.0)
    future = half_released(failing, leases)
    with breaking(failing.engine.leases, "begin_release_many"):
        failing.timer.turn()
    turn_until(failing, lambda: future.done)
    assert isinstance(future.error, LockUnavailable)
    assert failing.reasons == [(name, LossReason.INTERNAL_ERROR) for name in names(MANY)[PART:]]
    assert not failing.held


@pytest.mark.parametrize("place", [(BulkOperation, "pump"), (BulkBatch, "__init__")], ids=lambda place: place[1])
def test_a_failure_when_all_have_begun_keeps_no_caller_waiting(failing: Rig, place: tuple[Any, str]) -> None:
    leases = failing.hold_many(names(PART), 30.0)
    future = post_release(failing, leases)
    with breaking(*place, nth=1):
        failing.timer.turn()
    turn_until(failing, lambda: future.done)
    assert {lease.state for lease in leases} == {State.RELEASED}
    assert isinstance(future.error, LockUnavailable)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "place",
    [
        ("leases", "begin_release_many"),
        ("leases", "unhold"),
        (BulkOperation, "_backlog_of"),
        (BulkOperation, "pump"),
        (BulkBatch, "__init__"),
        (BulkBatch, "start"),
        ("timer", "go_on_with"),
    ],
    ids=lambda place: place[1],
)
def test_an_interrupted_part_raises_and_all_of_it_is_released_nevertheless(
    rig: Rig, place: tuple[Any, str], count: int
) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = post_release(rig, leases)
    where, method = place
    owner = {"leases": rig.engine.leases, "timer": rig.timer}.get(where, where)
    with breaking(owner, method, KeyboardInterrupt(), count), pytest.raises(KeyboardInterrupt):
        turn_times(rig, count)
    assert not future.done
    assert released(turn_until(rig, lambda: future.done)) == Counter(names(MANY))
    assert future.result() == {}
    assert {lease.state for lease in leases} == {State.RELEASED}
    assert not rig.held
    assert rig.losses == []


def test_what_an_interrupted_part_has_not_sent_is_released_once(rig: Rig) -> None:
    leases = rig.hold_many(names(3), 30.0)
    rig.launch.slow = True
    rig.hang_up()
    release = bulk_operations.ReleaseMany(rig.engine.leases, [leases], Future(lambda: None), lambda: None)
    for after in (None, KeyboardInterrupt(), None):
        release.begin_part(after)
    rig.launch.slow = False
    rig.launch.go_on()
    rig.go_on(0.5)
    assert released(rig.server.take()) == Counter(names(3))


def test_an_interrupted_part_of_a_close_leaves_none_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_operations, "_LOSSES_A_TURN", PART)
    with Rig(release_on_close=False) as rig:
        leases = rig.hold_many(names(MANY), 30.0)
        closed: Future[None] = Future(lambda: None)
        rig.timer.post(lambda: rig.engine.close(5.0, closed), rig.engine)
        rig.timer.turn()
        with breaking(rig.engine.leases, "unhold", KeyboardInterrupt(), 3), pytest.raises(KeyboardInterrupt):
            rig.timer.turn()
        turn_until(rig, lambda: closed.done)
        assert not any(map(rig.is_valid, leases))
        assert {lease.loss for lease in leases} == {LossReason.CONTEXT_CLOSED}


def test_a_lease_of_an_ended_owner_that_is_due_between_the_parts_is_watched_and_abandoned_behind_them(rig: Rig) -> None:
    owner = ThreadOwner()
    others = rig.hold_many([f"other:{name}" for name in names(3)], 3.0)
    for lease in others:
        lease.owner = owner
    future = half_released(rig, rig.hold_many(names(MANY), 30.0))
    owner.ended = True
    rig.clock.jump(1.5)
    rig.timer.turn()
    assert not future.done
    overdue = rig.engine.router.renewer.overdue.snapshot()
    assert all(lease in rig.timer.wheel or lease.state is State.RENEWING or lease in overdue for lease in others)
    assert rig.losses == []
    with pytest.warns(ResourceWarning, match="abandoned"):
        turn_until(rig, lambda: future.done and not any(map(rig.is_valid, others)))
        rig.drain()
    assert rig.reasons == [(lease.name, LossReason.ABANDONED) for lease in others]
