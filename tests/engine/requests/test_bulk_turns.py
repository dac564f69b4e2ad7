"""Bulk operations leave renewals alone: what a turn does for them is bounded, and each turn handles what is due first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.engine.rig import FINE, BulkAttempt, Command, Rig, array, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.bulk import BATCHES_IN_FLIGHT
from wheel_lock.engine.turns import LEASES_A_STEP, LEASES_A_TURN
from wheel_lock.errors import ContextClosed, LockServerError, LossReason
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
    assert rig.engine.leases.bulk_turns.waiting
    rig.fork()
    assert not rig.engine.leases.bulk_turns.waiting
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


def test_a_lease_that_is_abandoned_behind_a_release_is_released(rig: Rig) -> None:
    """As by a caller that is interrupted, and drops the locks that are being released for it."""
    leases = rig.hold_many(names(MANY), 300.0)
    released: Future[Any] = Future(lambda: None)
    rig.timer.post(lambda: rig.engine.release_many(leases, released), rig.engine)
    for lease in leases:
        rig.timer.post(partial(rig.engine.abandon, lease), rig.engine)
    turn_until(rig, lambda: released.done)
    assert released.result() == {}
    assert rig.reasons == []


# Several operations


IN_FLIGHT = BATCHES_IN_FLIGHT * LEASES_A_STEP


def others(count: int) -> list[str]:
    return [f"other:{name}" for name in names(count)]


def begin_release(rig: Rig, leases: list[Lease]) -> Future[Any]:
    """Begin a release, of which most steps wait then."""
    released: Future[Any] = Future(lambda: None)
    rig.timer.post(lambda: rig.engine.release_many(leases, released), rig.engine)
    rig.timer.turn()
    assert rig.engine.leases.bulk_turns.waiting > 2
    return released


def answer_beside_a_release(rig: Rig, count: int = IN_FLIGHT, **how: Any) -> BulkAttempt:
    """Have the replies to the first batches of an acquire read. Most of them wait for their step: a release is begun."""
    leases = rig.hold_many(names(MANY), 300.0)
    rig.server.take()
    attempt = rig.acquire_many(others(count), 300.0, **how)
    assert len(rig.server.take()) == BATCHES_IN_FLIGHT
    begin_release(rig, leases)
    rig.server.say(FINE * BATCHES_IN_FLIGHT)
    rig.timer.turn()
    assert sum(lease.state is State.PENDING for lease in attempt.leases) >= 2 * LEASES_A_STEP
    return attempt


@pytest.mark.parametrize("limit_s", [None, 5.0], ids=["of a batch", "of the call"])
def test_the_time_limit_ends_with_the_reply_and_not_with_its_step(rig: Rig, limit_s: float | None) -> None:
    attempt = answer_beside_a_release(rig, limit_s=limit_s)
    rig.clock.jump(6.0)
    turn_until(rig, lambda: attempt.future.done)
    assert attempt.future.error is None
    assert all(rig.believes(lease) for lease in attempt.leases)


def test_batches_whose_step_waits_count_as_in_flight(rig: Rig) -> None:
    attempt = answer_beside_a_release(rig, 2 * MANY)
    sent = IN_FLIGHT
    for _ in range(100):
        sent += sum(len(command.names) for command in rig.server.take() if command.names[0].startswith("other:"))
        assert sent - sum(lease.state is not State.PENDING for lease in attempt.leases) <= IN_FLIGHT
        assert rig.engine.leases.bulk_turns.waiting <= MANY // LEASES_A_STEP + 2 * BATCHES_IN_FLIGHT + 1
        rig.timer.turn()
    assert sent == 2 * IN_FLIGHT


def test_steps_that_wait_do_not_grow_in_number_with_what_is_acquired(rig: Rig) -> None:
    attempts = [rig.acquire_many([f"{part}:{name}" for name in names(MANY)], 300.0) for part in range(3)]
    most = 0

    def reached() -> bool:
        nonlocal most
        most = max(most, rig.engine.leases.bulk_turns.waiting)
        return all(attempt.future.done for attempt in attempts)

    turn_until(rig, reached)
    assert 0 < most <= 3 * BATCHES_IN_FLIGHT


def test_a_grant_does_not_wait_until_a_release_has_begun(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 300.0)
    rig.server.take()
    attempt = rig.acquire_many(others(LEASES_A_STEP), 300.0)
    rig.server.take()
    begin_release(rig, leases)
    rig.server.say(FINE)
    turns = rig.timer.turns
    while not attempt.future.done and rig.timer.turns < turns + 3:
        rig.timer.turn()
    assert attempt.future.done
    assert all(rig.believes(lease) for lease in attempt.leases)
    assert any(lease.state is State.HELD for lease in leases), "the release has not begun for all"


def test_a_release_does_not_wait_for_the_end_of_an_acquire(rig: Rig) -> None:
    leases = rig.hold_many(names(LEASES_A_TURN), 300.0)
    rig.server.take()
    attempt = rig.acquire_many(others(4 * MANY), 300.0)
    released: Future[Any] = Future(lambda: None)
    rig.timer.post(lambda: rig.engine.release_many(leases, released), rig.engine)
    turn_until(rig, lambda: released.done)
    assert not attempt.future.done
    turn_until(rig, lambda: attempt.future.done)


def test_renewals_are_sent_in_the_next_turn_and_confirmed_soon_beside_several_operations(rig: Rig) -> None:
    kept = rig.hold("kept", 30.0)
    held = [rig.hold_many([f"{part}:{name}" for name in names(MANY)], 300.0) for part in range(3)]
    rig.clock.jump(9.98 + kept.acquired_at - rig.now)
    attempt = rig.acquire_many(others(MANY), 300.0)
    released = [begin_release(rig, leases) for leases in held]
    rig.server.agree()
    rig.clock.jump(0.02)
    rig.timer.turn()
    assert kept.state is State.RENEWING
    turn_until(rig, lambda: kept.renewals == 1)
    assert rig.engine.leases.bulk_turns.waiting
    turn_until(rig, lambda: attempt.future.done and all(future.done for future in released))


# The end


def die(rig: Rig, monkeypatch: pytest.MonkeyPatch, *, handled: bool) -> None:
    """Have the thread die; ``handled`` tells whether it was about to do the next steps."""
    monkeypatch.setattr(rig.timer, "_start", lambda: None)  # the test turns it
    if handled:
        rig.timer._inbox.clear()
    rig.timer._died(SystemExit("an exception thrown into the thread"))


@pytest.mark.parametrize("handled", [True, False])
def test_no_caller_waits_for_steps_of_a_thread_that_has_died(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, handled: bool
) -> None:
    leases = rig.hold_many(names(MANY), 300.0)
    rig.server.take()
    released = begin_release(rig, leases)
    die(rig, monkeypatch, handled=handled)
    turn_until(rig, lambda: released.done)
    assert {lease.state for lease in leases} <= {State.LOST, State.RELEASED}
    assert {reason for _, reason in rig.reasons} == {LossReason.THREAD_DIED}


def test_no_caller_waits_for_replies_that_were_read_before_the_thread_died(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = answer_beside_a_release(rig)
    die(rig, monkeypatch, handled=True)
    turn_until(rig, lambda: attempt.future.done)


def test_no_caller_waits_for_steps_of_a_timer_that_has_been_stopped(rig: Rig) -> None:
    attempt = answer_beside_a_release(rig, MANY)
    rig.timer.stop()
    rig.timer.turn()
    assert isinstance(attempt.future.error, ContextClosed)
    assert not rig.engine.leases.bulk_turns.waiting
    assert not any(rig.believes(lease) for lease in attempt.leases)
