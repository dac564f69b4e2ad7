"""How a wait ends without the lock, at whatever stage: each caller gets an error, and nothing is left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tests.engine.rig import BUG, NIL, OK, REFUSED, TAKEN, array, breaking, failure, integer, names
from tests.engine.waiting_rig import Wait, WaitingRig
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.engine.waiting import many
from wheel_lock.errors import ContextClosed, LockTimeout, LockUnavailable, TooManyLocks, WheelLockError
from wheel_lock.lock_types import FAIR
from wheel_lock.runtime.ends import End


def test_no_more_than_max_waiting_may_wait() -> None:
    with WaitingRig(max_waiting=2) as rig:
        first, second = rig.wait_first("a"), rig.wait("a")
        third = rig.wait("a")
        assert isinstance(third.error, TooManyLocks)
        assert third.error.lock_name == "a"
        elsewhere = rig.wait("b")
        rig.refuse()
        assert isinstance(elsewhere.error, TooManyLocks)
        poller = rig.wait("c", retry_every=0.1)
        rig.refuse()
        assert isinstance(poller.error, TooManyLocks)
        rig.give_up(second)
        assert rig.wait("a").goes_on
        rig.wake("a")
        rig.grant(first)
        assert rig.wait("a").goes_on
        assert isinstance(rig.wait("a").error, TooManyLocks)


def a_line(rig: WaitingRig) -> list[Wait]:
    rig.wait_first("a")
    waits = [rig.wait("a") for _ in range(5)]
    line = rig.line("a")
    assert line is not None
    assert len(line) == 6
    rig.wake("a")
    return waits


def who_asks(rig: WaitingRig) -> list[Wait]:
    return [rig.wait("a") for _ in range(5)]


stages = pytest.mark.parametrize("stage", [a_line, who_asks])
Stage = Callable[[WaitingRig], list[Wait]]


@stages
@pytest.mark.parametrize("fate", ["died", "failed"])
def test_the_death_of_the_thread_is_everybodys_and_not_for_ever(rig: WaitingRig, stage: Stage, fate: str) -> None:
    waits = stage(rig)
    holder = rig.lines
    rig.post((lambda: rig.end(End.DIED)) if fate == "died" else lambda: rig.engine.crashed(BUG))
    errors = [wait.error for wait in waits]
    assert len({id(error) for error in errors}) == 5  # each has its own
    assert all(isinstance(error, LockUnavailable) and error.__traceback__ is None for error in errors)
    assert (len(holder), rig.waiting, holder.in_flight) == (0, 0, {})
    again = rig.wait("a")
    rig.go_on(0.1, rig.be_taken())
    rig.wake("a")
    rig.grant(again)
    rig.let_go(again)
    rig.assert_clean()


def test_at_the_end_of_the_interpreter_no_caller_is_notified(rig: WaitingRig) -> None:
    waits = [rig.wait_first("a"), rig.wait("a"), rig.wait("b"), rig.wait("b")]
    rig.ask(lambda future: rig.engine.close(1.0, future, exiting=True))
    assert not any(wait.future.done for wait in waits)
    assert rig.waiting == 0


def test_a_wait_on_a_context_that_is_being_closed_ends_with_its_first_answer(rig: WaitingRig) -> None:
    hasty = rig.wait("a", blocking=False)
    poller = rig.wait("b", retry_every=0.1)
    rig.close_engine(1.0)
    rig.say(NIL, NIL)
    assert hasty.refused
    assert isinstance(poller.error, ContextClosed)
    assert isinstance(poller.error, WheelLockError)


def test_nothing_of_a_grant_and_a_release_is_left_to_the_garbage_collector(rig: WaitingRig) -> None:
    rig.wait("warm")
    rig.say(OK)
    rig.server.take()
    gc.collect()
    gc.freeze()  # what a thread of an earlier test lets go in the meantime is not looked at
    gc.disable()
    try:
        wait = rig.wait("a")
        rig.say(OK)
        rig.let_go(wait)
        del wait
        rig.go_on(0.1)  # requests are remembered for a while, because their replies may be late
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [garbage for garbage in gc.garbage if type(garbage).__module__.startswith("wheel_lock")] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # again what there is for the whole session, as tests/conftest.py does
        gc.enable()


@pytest.mark.rig(max_held=1)
def test_waiters_of_fair_locks_count_when_granted_and_do_not_try_once_they_have_failed(rig: WaitingRig) -> None:
    waits = [rig.wait(name, kind=FAIR) for name in "abc"]
    rig.refuse()
    rig.listen()
    rig.refuse()
    rig.go_on(1.0)
    rig.say(integer(0), integer(0), array(-1))
    assert [wait.granted for wait in waits] == [True, False, False]
    failure(waits[1].future, TooManyLocks)
    rig.release(waits[0].lease)
    rig.agree()
    rig.post(lambda: rig.lines.crashed(BUG))
    failure(waits[2].future, WheelLockError, "internal error")
    tried: list[str] = []
    rig.go_on(10.0, lambda: tried.extend(command.what for command in rig.server.agree()))
    assert "acquire_fair" not in tried


def test_very_many_that_one_call_waits_for_are_given_up_part_by_part(
    rig: WaitingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "_PART", 1)
    call = rig.wait_for_each(names(3))
    rig.reply("acquire_many", array(1, TAKEN, 2, TAKEN, 3, TAKEN))
    rig.turn()
    assert rig.lines.count == 3
    rig.post(call.give_up)
    assert rig.lines.count == 0


@pytest.mark.parametrize("ends", [lambda call: call._fail(BUG), lambda call: call.give_up()])
def test_what_one_call_was_granted_is_released_when_it_ends(
    rig: WaitingRig, ends: Callable[[many.AcquireEach], object]
) -> None:
    call = rig.wait_for_each(names(3))
    rig.reply("acquire_many", array(2, TAKEN, 3, TAKEN))
    rig.refuse()
    rig.listen()
    rig.refuse()
    rig.wake("lock:1")
    assert rig.server.one("SET")
    rig.server.say(OK)  # it has not been read when the call ends
    rig.post(lambda: ends(call))
    rig.go_on(0.1, rig.agree)
    assert not rig.held
    released = [name for each in rig.commands if each.what == "release_many" for name in each.names]
    assert sorted(released) == names(2)
    assert rig.lines.count == 0


def test_a_call_for_many_whose_undoing_fails_has_an_error_all_the_same(failing: WaitingRig) -> None:
    call = failing.wait_for_each(names(2))
    failing.reply("acquire_many", array(1, TAKEN, 2, TAKEN))
    with breaking(AcquireMany, "give_up"):
        failing.post(lambda: call._fail(TooManyLocks("too many")))
        failing.turn()
    failure(call._future, TooManyLocks)


def test_a_call_for_many_has_its_error_in_the_last_turn_of_a_timer_that_stops(rig: WaitingRig) -> None:
    call = rig.wait_for_each(names(2))
    rig.reply("acquire_many", array(1, TAKEN, 2, TAKEN))
    rig.turn()
    rig.end(End.STOPPED)
    rig.timer.turn()
    failure(call._future, ContextClosed)


def test_who_shares_the_first_try_of_a_server_that_was_never_there_waits_for_it_if_it_has_a_limit(
    rig: WaitingRig,
) -> None:
    rig.connector.refusal, rig.launch.slow = REFUSED, True
    endless, limited = rig.wait("a"), rig.wait("a", blocking_timeout=1.0)
    rig.launch.slow = False
    rig.launch.go_on()
    rig.go_on(0.2)
    assert isinstance(endless.error, LockUnavailable)
    assert limited.goes_on


@pytest.mark.parametrize("limits", [(None, 1.0), (1.0, None)])
def test_who_shares_a_first_try_has_its_own_limit_which_ends_no_other_wait(
    rig: WaitingRig, limits: tuple[float | None, float | None]
) -> None:
    rig.hold("warm-up", 60.0)
    waits = {limit: rig.wait("a", blocking_timeout=limit) for limit in limits}
    rig.be_silent(1.1)
    assert isinstance(waits[1.0].error, LockTimeout)
    assert waits[None].goes_on


def test_the_last_try_of_one_caller_ends_no_other_wait(rig: WaitingRig) -> None:
    hasty, patient = rig.wait_first("a", blocking_timeout=1.0), rig.wait("a")
    rig.be_silent(1.2)
    assert isinstance(hasty.error, LockTimeout)
    assert patient.goes_on


@pytest.mark.parametrize("behind", [False, True])
def test_who_waits_for_what_is_held_here_is_refused_when_its_time_is_up(rig: WaitingRig, behind: bool) -> None:
    holder = rig.hold_first("a", 60.0)
    waits = [rig.wait("a"), rig.wait("a", blocking_timeout=1.0)] if behind else [rig.wait("a", blocking_timeout=1.0)]
    rig.go_on(1.1)
    assert waits[-1].refused
    assert rig.is_valid(holder.lease)
    assert all(wait.goes_on for wait in waits[:-1])
