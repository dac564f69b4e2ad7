"""A release of many leases begins in parts, a turn each; whatever is posted behind it finds all of it begun."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.engine.rig import FINE, GONE, OK, TAKEN, TICK_S, Command, Rig, array, breaking, failure, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.engine.requests.bulk import BATCHES_IN_FLIGHT, BulkBatch, BulkOperation
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.errors import LockNotHeld, LockUnavailable, LossReason, WheelLockError
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.lock_types.caller_token import CALLER_TOKEN
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


def test_a_close_that_releases_nothing_ends_a_part_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_operations, "_LOSSES_A_TURN", PART)
    with Rig(release_on_close=False) as rig:
        leases = rig.hold_many(names(MANY), 30.0)
        closed: Future[None] = Future(lambda: None)
        rig.timer.post(lambda: rig.engine.close(5.0, closed), rig.engine)
        held: list[int] = []
        while not closed.done:
            rig.timer.turn()
            held.append(len(rig.held))
        assert held[:5] == [40, 30, 20, 10, 0]
        assert rig.reasons == [(lease.name, LossReason.CONTEXT_CLOSED) for lease in leases]


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


@contextmanager
def strike(owner: Any, method: str, count: int, error: BaseException) -> Iterator[None]:
    """Have a method raise ``error`` in place of its ``count``-th call, in a ``with``."""
    call, calls = getattr(owner, method), itertools.count(1)

    def struck(*arguments: Any) -> Any:
        if next(calls) == count:
            raise error
        return call(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, struck)
        yield


def test_nor_if_it_dies_in_the_middle_of_a_part(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.timer, "_start", lambda: None)
    leases = rig.hold_many(names(MANY), 30.0)
    rig.server.take()
    future = half_released(rig, leases)
    killing = strike(rig.engine.leases, "unhold", 4, SystemExit("thrown into the thread"))
    with killing, pytest.raises(SystemExit) as killed:
        rig.timer.turn()
    rig.timer._died(killed.value)
    turn_until(rig, lambda: future.done)
    assert isinstance(future.error, LockUnavailable), "some are neither released nor lost"
    assert not any(rig.believes(lease) for lease in leases)
    assert not rig.held


def test_a_failure_in_a_part_loses_the_rest_and_no_caller_waits(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases)
    with breaking(rig.engine.leases, "begin_release_many"):
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


def test_few_batches_are_in_flight_before_all_of_it_has_begun(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = post_release(rig, leases)
    in_flight: list[int] = []
    for _ in range(MANY // PART):
        rig.timer.turn()
        in_flight.append(len(rig.server.take()))
    assert in_flight == [1, 1, 0, 0, 1], "the last one about all that waited"
    rig.server.say(FINE * sum(in_flight))
    turn_until(rig, lambda: future.done)
    assert future.result() == {}


# A stall


def namesakes(rig: Rig, timeout: float) -> list[Lease]:
    """Hold locks with a token that others may have chosen, too."""
    return [rig.hold(name, timeout, kind=CALLER_TOKEN) for name in names(MANY)]


@pytest.mark.parametrize("turns", [1, 3, 5])
def test_nothing_is_sent_for_a_caller_token_that_lapses_during_a_stall(rig: Rig, turns: int) -> None:
    leases = namesakes(rig, 30.0)
    future = post_release(rig, leases)
    for _ in range(turns):
        rig.timer.turn()
    commands = rig.server.take()
    sent = released(commands)
    assert sent == Counter(names(MANY)[: {1: PART, 3: 2 * PART, 5: MANY}[turns]])
    rig.clock.jump(31.0)  # another owner may have acquired the rest with the same token
    rig.server.say(FINE * len(commands))
    assert released(turn_until(rig, lambda: future.done)) == Counter()
    left = names(MANY)[sent.total() :]
    assert future.result() == dict.fromkeys(left, LossReason.NOT_CONFIRMED)
    assert sorted(rig.reasons) == sorted((name, LossReason.NOT_CONFIRMED) for name in left)


@pytest.mark.rig(batch_size=1)
def test_nor_is_it_where_all_of_them_have_begun_and_wait_for_their_turn_to_be_sent(rig: Rig) -> None:
    leases = namesakes(rig, 30.0)[: PART - 1]
    rig.server.take()
    future = rig.release_many(leases)
    sent = released(rig.server.take())
    assert sent.total() == BATCHES_IN_FLIGHT < len(leases)
    rig.clock.jump(31.0)
    rig.server.say(FINE * sent.total())
    assert released(turn_until(rig, lambda: future.done)) == Counter()
    assert future.result() == {leases[-1].name: LossReason.NOT_CONFIRMED}


def test_what_lapses_during_a_stall_before_its_part_is_lost(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases)
    rig.server.agree()
    rig.clock.jump(31.0)
    turn_until(rig, lambda: future.done)
    left = names(MANY)[PART:]
    assert future.result() == dict.fromkeys(left, LossReason.NOT_CONFIRMED)
    assert sorted(rig.reasons) == sorted((name, LossReason.NOT_CONFIRMED) for name in left)


# Owners that end


def watched(rig: Rig, lease: Lease) -> bool:
    """Return whether the lease is on the wheel, in an unanswered batch, or overdue."""
    return lease in rig.timer.wheel or lease.state is State.RENEWING or lease in rig.engine.router.renewer.overdue


def owned(rig: Rig, leases: list[Lease]) -> Owner:
    owner = Owner()
    for lease in leases:
        lease.owner = owner
    return owner


def test_a_lease_of_an_ended_owner_that_is_due_between_the_parts_is_watched_and_abandoned_behind_them(rig: Rig) -> None:
    others = rig.hold_many([f"other:{name}" for name in names(3)], 3.0)
    leases = rig.hold_many(names(MANY), 30.0)
    owner = owned(rig, others)
    rig.server.take()
    future = half_released(rig, leases)
    owner.ended = True
    rig.clock.jump(1.5)
    rig.timer.turn()
    assert not future.done
    assert all(watched(rig, lease) for lease in others)
    assert rig.told == []
    with pytest.warns(ResourceWarning, match="abandoned"):
        turn_until(rig, lambda: future.done and not any(map(rig.believes, others)))
        rig.drain()
    assert rig.reasons == [(lease.name, LossReason.ABANDONED) for lease in others]


def test_nor_does_one_that_is_overdue_leave_the_watch() -> None:
    with Rig(batch_size=1) as rig:
        others = rig.hold_many([f"other:{name}" for name in names(100)], 30.0)
        rig.go_on(2.0)
        leases = rig.hold_many(names(MANY), 60.0)
        rig.be_away(9.0)
        rig.connector.refusal = None
        rig.go_on(1.0)
        assert {lease.state for lease in others} == {State.OVERDUE, State.RENEWING}, "some calls are in flight"
        owner = owned(rig, others)
        future = half_released(rig, leases)
        owner.ended = True
        rig.server.agree()
        rig.timer.turn()
        assert all(watched(rig, lease) for lease in others)
        assert rig.told == []
        turn_until(rig, lambda: future.done)
        with pytest.warns(ResourceWarning, match="abandoned"):
            rig.go_on(15.0, rig.agree)
            rig.drain()
        assert set(rig.reasons) == {(lease.name, LossReason.ABANDONED) for lease in others}


def test_an_ended_owners_lease_that_lapses_during_a_stall_between_the_parts_is_lost(rig: Rig) -> None:
    others = rig.hold_many([f"other:{name}" for name in names(3)], 3.0)
    leases = rig.hold_many(names(MANY), 30.0)
    owner = owned(rig, others)
    rig.server.take()
    future = half_released(rig, leases)
    owner.ended = True
    rig.clock.jump(1.5)
    rig.timer.turn()
    for pause_s in (3.0, TICK_S):
        rig.clock.jump(pause_s)
        rig.timer.turn()
    assert not future.done
    lost = [(lease.name, LossReason.NOT_CONFIRMED) for lease in others]
    assert sorted(rig.reasons) == lost, "at once, not behind the parts"
    turn_until(rig, lambda: future.done)


# Interruptions on a timer without a thread


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "place",
    [
        ("leases", "begin_release_many"),
        ("leases", "unhold"),
        (BulkOperation, "_backlog_of"),
        (BulkOperation, "pump"),
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
    owner, method = place
    if owner == "leases":
        owner = rig.engine.leases
    elif owner == "timer":
        owner = rig.timer
    commands: list[Command] = []
    with strike(owner, method, count, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        turn_times(rig, count)
    assert not future.done
    commands += turn_until(rig, lambda: future.done)
    assert released(commands) == Counter(names(MANY))
    assert future.result() == {}
    assert {lease.state for lease in leases} == {State.RELEASED}
    assert not rig.held
    assert rig.told == []


def test_an_interruption_in_the_last_part_leaves_none_behind(rig: Rig) -> None:
    leases = rig.hold_many(names(PART), 30.0)
    future = post_release(rig, leases)
    with strike(BulkBatch, "start", 1, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        rig.timer.turn()
    assert released(turn_until(rig, lambda: future.done)) == Counter(names(PART))
    assert future.result() == {}


# Connections


@pytest.mark.parametrize("answered", [True, False])
def test_a_connection_that_breaks_between_the_parts(rig: Rig, answered: bool) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases)
    first = released(rig.server.agree() if answered else rig.server.take())
    rig.server.close()
    for _ in range(20):
        rig.timer.turn()
        rig.clock.jump(0.05)
    commands = turn_until(rig, lambda: future.done)
    assert future.result() == {}
    again = Counter() if answered else first
    assert first + released(commands) == Counter(names(MANY)) + again
    assert {lease.state for lease in leases} == {State.RELEASED}
    assert rig.stats().released == MANY


@pytest.mark.rig(watch=True)
def test_watched_locks_are_forgotten_with_their_parts(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = post_release(rig, leases)
    turn_until(rig, lambda: future.done)
    assert not rig.held
    assert rig.engine.router._watched is not None
    assert rig.engine.router._watched.by_key == {}
