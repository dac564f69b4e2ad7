"""A release of many leases begins in parts, a turn each; whatever is posted behind it finds all of it begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.engine.rig import GONE, OK, TAKEN, Command, Rig, array, breaking, failure, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.errors import LockNotHeld, LockUnavailable, LossReason, WheelLockError
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.options import lock_options

PART = 10
MANY = 5 * PART


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_operations, "LEASES_A_TURN", PART)


def post_release(rig: Rig, leases: list[Lease]) -> Future[Any]:
    """Post a release, and do not turn."""
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
    assert rig.told == []
    assert not rig.held
    assert rig.stats().released == MANY


def test_several_releases_begin_one_after_the_other(rig: Rig) -> None:
    leases = [rig.hold_many([f"{part}:{name}" for name in names(MANY)], 30.0) for part in range(3)]
    futures = [post_release(rig, some) for some in leases]
    begun = 0
    while begun < 3 * MANY:
        before = begun
        rig.timer.turn()
        rig.server.agree()
        begun = sum(lease.state is not State.HELD for some in leases for lease in some)
        assert PART <= begun - before <= 2 * PART, "the last part of one, and the first of the next"
    turn_until(rig, lambda: all(future.done for future in futures))


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


def test_a_lock_that_is_lost_before_its_part_is_told_of_once_and_in_the_result(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 3.0)
    rig.server.take()
    rig.clock.jump(1.0)
    rig.timer.turn()
    [renewal] = rig.server.take()
    assert renewal.names == names(MANY)
    future = half_released(rig, leases) if leases[-1].state is State.HELD else post_release(rig, leases)
    rig.timer.turn()
    rig.server.say(array(MANY, GONE))
    rig.timer.turn()
    turn_until(rig, lambda: future.done)
    assert future.result() == {names(MANY)[-1]: LossReason.KEY_GONE}
    assert rig.reasons == [(names(MANY)[-1], LossReason.KEY_GONE)]


# Undoing an acquire


def begun_by_turn(rig: Rig, leases: list[Lease], reached: Callable[[], bool]) -> list[int]:
    """Turn until the end; return the numbers of leases that were not held any more after each turn."""
    begun: list[int] = []
    while not reached():
        rig.timer.turn()
        begun.append(sum(lease.state is not State.HELD for lease in leases))
        rig.server.agree()
    return begun


def test_an_acquire_that_is_given_up_is_undone_in_parts(rig: Rig) -> None:
    attempt = rig.acquire_many(names(MANY), 30.0)
    rig.agree()
    assert attempt.future.done
    rig.timer.post(attempt.bulk.give_up, rig.engine)
    begun = begun_by_turn(rig, attempt.leases, lambda: not rig.held)
    assert begun == [PART * turns for turns in range(1, 6)]
    rig.agree()
    assert {lease.state for lease in attempt.leases} == {State.RELEASED}


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


# What comes behind


@pytest.mark.parametrize("halfway", [False, True])
@pytest.mark.parametrize("release_on_close", [False, True])
def test_a_close_behind_it_tells_of_no_loss_and_releases_nothing_again(release_on_close: bool, halfway: bool) -> None:
    with Rig(release_on_close=release_on_close, batch_size=5) as rig:
        kept = rig.hold("kept", 30.0)
        leases = rig.hold_many(names(MANY), 30.0)
        rig.server.take()
        future = half_released(rig, leases) if halfway else post_release(rig, leases)
        closed: Future[None] = Future(lambda: None)
        rig.timer.post(lambda: rig.engine.close(5.0, closed), rig.engine)
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
        closed: Future[None] = Future(lambda: None)
        rig.timer.post(lambda: rig.engine.close(5.0, closed), rig.engine)
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


@pytest.mark.parametrize("halfway", [False, True])
def test_a_caller_that_was_interrupted_finds_all_of_it_begun_when_it_comes_by(rig: Rig, halfway: bool) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    half_released(rig, leases) if halfway else post_release(rig, leases)
    seen: list[set[State]] = []
    come_by: Future[None] = Future(lambda: seen.append({lease.state for lease in leases}))
    rig.timer.post(lambda: rig.engine.come_by(come_by), rig.engine)
    for _ in range(MANY // PART + 1):
        rig.timer.turn()
    assert seen == [{State.RELEASING}]


def test_locks_that_are_dropped_behind_it_are_released_and_not_lost(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases)
    for lease in leases:
        rig.timer.post(partial(rig.engine.abandon, lease), rig.engine)
    turn_until(rig, lambda: future.done)
    assert future.result() == {}
    assert rig.told == []


def test_leases_whose_thread_ends_before_their_part_are_released_and_not_lost(rig: Rig) -> None:
    owner = Owner()
    leases = rig.hold_many(names(MANY), 30.0)
    for lease in leases:
        lease.owner = owner
    rig.clock.jump(9.9 + leases[0].acquired_at - rig.now)
    future = post_release(rig, leases)
    rig.timer.turn()
    owner.ended = True
    rig.clock.jump(0.5)
    turn_until(rig, lambda: future.done)
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


@pytest.mark.rig(max_held=MANY)
def test_what_is_acquired_behind_it_finds_room(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    post_release(rig, leases)
    attempt = rig.acquire("another")
    turn_until(rig, lambda: attempt.future.done)
    assert attempt.future.result()


# Failures


def test_nothing_of_it_is_left_in_a_forked_child(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    half_released(rig, leases)
    sent = rig.everything_sent()
    rig.fork()
    rig.go_on(5.0)
    assert rig.everything_sent() == sent
    assert rig.believes(rig.hold("a", 30.0))


def test_no_caller_waits_for_the_rest_if_the_thread_dies(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.timer, "_start", lambda: None)  # the test turns it
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases)
    rig.timer._died(SystemExit("an exception thrown into the thread"))
    turn_until(rig, lambda: future.done)
    assert isinstance(future.error, LockUnavailable)
    assert rig.reasons == [(name, LossReason.THREAD_DIED) for name in names(MANY)[PART:]]
    assert rig.believes(rig.hold("a", 30.0))


def strikes_at(count: int) -> Iterator[None]:
    for _ in range(count - 1):
        yield
    raise SystemExit("an exception thrown into the thread")


def test_nor_if_it_dies_in_the_middle_of_a_part(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.timer, "_start", lambda: None)
    leases = rig.hold_many(names(MANY), 30.0)
    rig.server.take()
    future = half_released(rig, leases)
    begin, strike = rig.engine.leases.begin_release, strikes_at(4)

    def begin_release(lease: Lease) -> WheelLockError | None:
        next(strike)
        return begin(lease)

    with monkeypatch.context() as patch:
        patch.setattr(rig.engine.leases, "begin_release", begin_release)
        with pytest.raises(SystemExit) as killed:
            rig.timer.turn()
    rig.timer._died(killed.value)
    turn_until(rig, lambda: future.done)
    assert isinstance(future.error, LockUnavailable), "some are neither released nor lost"
    assert not any(rig.believes(lease) for lease in leases)
    assert not rig.held


def test_a_failure_in_a_part_loses_the_rest_and_no_caller_waits(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases)
    with breaking(rig.engine.leases, "begin_release"):
        rig.timer.turn()
    turn_until(rig, lambda: future.done)
    assert isinstance(future.error, LockUnavailable)
    assert rig.reasons == [(name, LossReason.INTERNAL_ERROR) for name in names(MANY)[PART:]]
    assert not rig.held
    assert rig.failures
    rig.failures.clear()


def test_a_server_that_does_not_answer_gets_no_more_and_all_of_it_ends() -> None:
    with Rig(batch_size=1) as rig:
        leases = rig.hold_many(names(MANY), 60.0)
        rig.server.take()
        rig.launch.slow = True
        future = post_release(rig, leases)
        rig.go_on(8.0)
        assert isinstance(future.error, WheelLockError)
        assert {lease.state for lease in leases} == {State.RELEASED}
        assert not rig.held
        assert rig.told == []


def test_replies_are_read_between_the_parts_and_nothing_is_sent_before_the_last(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    asked = rig.acquire("another")
    future = half_released(rig, leases)
    assert rig.server.one("SET").names == ["another"]
    rig.server.say(OK)
    rig.timer.turn()
    assert asked.future.done
    assert {lease.state for lease in leases[2 * PART :]} == {State.HELD}
    assert rig.server.take() == []
    turn_until(rig, lambda: future.done)
