"""Bulk operations leave renewals alone: what a turn does for them is bounded, and each turn handles what is due first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engine.rig import FINE, Command, Rig, array, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.turns import LEASES_A_STEP, LEASES_A_TURN
from wheel_lock.errors import LockServerError
from wheel_lock.lease import Lease, State

MANY = 3 * LEASES_A_TURN
MOST = LEASES_A_TURN + LEASES_A_STEP  # the step that reaches the limit is finished


def turn_until(rig: Rig, reached: Callable[[], bool]) -> list[Command]:
    """Have the server agree to everything, turn by turn; return all commands."""
    commands: list[Command] = []
    for _ in range(200):
        commands += rig.server.agree()
        rig.timer.turn()
        if reached():
            return commands
    raise AssertionError("not within 200 turns")


def test_leases_handled_in_one_turn_are_bounded(rig: Rig) -> None:
    attempt = rig.acquire_many(names(MANY), 30.0)
    turn_until(rig, lambda: attempt.future.done)
    assert all(lease.state is State.HELD for lease in attempt.leases)
    future = rig.release_many(attempt.leases)
    turn_until(rig, lambda: future.done)
    assert future.result() == {}
    assert {lease.state for lease in attempt.leases} == {State.RELEASED}
    assert LEASES_A_STEP <= rig.engine.leases.bulk_turns.most <= MOST


def test_so_are_those_of_several_operations_together(rig: Rig) -> None:
    attempts = [rig.acquire_many([f"{part}:{name}" for name in names(LEASES_A_TURN)], 30.0) for part in range(4)]
    turn_until(rig, lambda: all(attempt.future.done for attempt in attempts))
    futures = [rig.release_many(attempt.leases) for attempt in attempts]
    turn_until(rig, lambda: all(future.done for future in futures))
    assert rig.engine.leases.bulk_turns.most <= MOST


def leases_sent_until_renewed(rig: Rig) -> int:
    """Turn at the moment at which a lease is due; return how many leases the bulk has sent when that is renewed."""
    sent = 0
    for _ in range(100):
        for command in rig.server.agree():
            if command.what == "renew":
                return sent
            sent += len(command.names)
        rig.timer.turn()
    raise AssertionError("not within 100 turns")


def test_a_renewal_that_is_due_in_the_middle_of_a_release_goes_out_before_its_end(rig: Rig) -> None:
    kept = rig.hold("kept", 30.0)
    leases = rig.hold_many(names(MANY), 300.0)
    rig.server.take()
    rig.clock.jump(9.98 + kept.acquired_at - rig.now)
    released: Future[Any] = Future(lambda: None)
    rig.timer.post(lambda: rig.engine.release_many(leases, released), rig.engine)
    rig.timer.turn()
    assert {lease.state for lease in leases} == {State.RELEASING, State.HELD}, "it is in the middle"
    rig.clock.jump(0.02)
    assert leases_sent_until_renewed(rig) <= 2 * MOST
    turn_until(rig, lambda: released.done)


def test_a_renewal_that_is_due_in_the_middle_of_an_acquire_goes_out_before_its_end(rig: Rig) -> None:
    kept = rig.hold("kept", 30.0)
    rig.clock.jump(9.98 + kept.acquired_at - rig.now)
    attempt = rig.acquire_many(names(MANY), 300.0)
    assert rig.server.agree(), "several batches are answered at once"
    rig.clock.jump(0.02)
    rig.timer.turn()
    assert {lease.state for lease in attempt.leases} == {State.PENDING, State.HELD}, "it is in the middle"
    assert leases_sent_until_renewed(rig) <= 2 * MOST
    turn_until(rig, lambda: attempt.future.done)
    assert all(rig.believes(lease) for lease in [kept, *attempt.leases])


def test_undoing_many_is_divided_too(rig: Rig) -> None:
    attempt = rig.acquire_many(names(MANY), 30.0)
    answered = rig.server.take()
    rig.say(array(1, "OOM command not allowed"), FINE * (len(answered) - 1))
    turn_until(rig, lambda: attempt.future.done and not rig.held)
    assert isinstance(attempt.future.error, LockServerError)
    rig.agree()
    assert {lease.state for lease in attempt.leases} <= {State.RELEASED, State.REFUSED}
    assert rig.engine.leases.bulk_turns.most <= MOST


def test_steps_are_dropped_in_a_forked_child(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    rig.timer.post(lambda: rig.engine.release_many(leases, Future(lambda: None)), rig.engine)
    rig.timer.turn()
    assert rig.engine.leases.bulk_turns.busy
    rig.fork()
    assert not rig.engine.leases.bulk_turns.busy
    lease: Lease = rig.hold("a", 30.0)
    assert rig.believes(lease)


def test_what_is_asked_for_behind_a_release_finds_all_of_it_begun(rig: Rig) -> None:
    """As the caller does that acquires again after a release that was interrupted."""
    leases = rig.hold_many(names(MANY), 30.0)
    come_by: Future[None] = Future(lambda: None)
    rig.timer.post(lambda: rig.engine.release_many(leases, Future(lambda: None)), rig.engine)
    rig.timer.post(lambda: rig.engine.come_by(come_by), rig.engine)
    rig.timer.turn()
    assert not come_by.done
    while not come_by.done:
        rig.timer.turn()
    assert not any(rig.believes(lease) for lease in leases)
