"""The wheel by examples. What random sequences of calls do is in test_wheel_against_a_heap.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wheel.timers import Timer, timers
from wheel_lock.wheel import Wheel

SLOTS = 8


@pytest.fixture
def wheel() -> Wheel[Timer]:
    return Wheel(SLOTS)


def fired_at(wheel: Wheel[Timer], timer: Timer, until: int) -> list[int]:
    """The ticks at which the timer came due while the wheel went on tick by tick."""
    ticks = []
    while wheel.now < until:
        due = wheel.advance(wheel.now + 1)
        ticks += [wheel.now] * due.count(timer)
        wheel.check()
    return ticks


def test_a_number_of_slots_that_is_no_power_of_two_is_refused_by_name() -> None:
    bad: list[Any] = [0, 1, 3, 6, 1000, -8, 8.0, True, "8"]
    for slots in bad:
        with pytest.raises(ValueError, match=f"power of two.*{slots!r}"):
            Wheel(slots)


def test_a_wheel_has_1024_slots_unless_told_otherwise() -> None:
    assert len(Wheel[Timer]().occupancy()) == 1024


def test_a_far_timer_stays_before_those_scheduled_for_its_tick_once_it_is_near(wheel: Wheel[Timer]) -> None:
    far, near = Timer("far"), Timer("near")
    wheel.schedule(far, 3 * SLOTS)
    wheel.advance(3 * SLOTS - 2)
    wheel.schedule(near, 3 * SLOTS)
    assert wheel.advance(3 * SLOTS) == [far, near]


@pytest.mark.parametrize("tick", [4, 4 + 3 * SLOTS])
def test_scheduling_what_is_scheduled_is_an_error_and_changes_nothing(wheel: Wheel[Timer], tick: int) -> None:
    timer = Timer()
    wheel.schedule(timer, tick)
    with pytest.raises(ValueError, match="in the wheel already"):
        wheel.schedule(timer, 2)
    with pytest.raises(ValueError, match="in the wheel already"):
        wheel.schedule_many([timer], 2)
    wheel.check()
    assert (len(wheel), timer.tick) == (1, tick)
    assert wheel.advance(tick) == [timer]


def test_timers_that_come_and_go_leave_nothing_behind(wheel: Wheel[Timer]) -> None:
    held = Timer("held")
    wheel.schedule(held, 50 * SLOTS)
    for tick in range(1, 40 * SLOTS):
        passing = Timer(tick)
        wheel.schedule(passing, tick)
        assert wheel.cancel(passing)
    wheel.check()
    assert wheel.next_due_tick() == 50 * SLOTS
    assert wheel.advance(60 * SLOTS) == [held]


def test_the_wheel_cannot_go_back(wheel: Wheel[Timer]) -> None:
    timer = Timer()
    wheel.schedule(timer, 20)
    wheel.advance(10)
    with pytest.raises(ValueError, match=r"10.*cannot go back to 9"):
        wheel.advance(9)
    assert wheel.now == 10
    assert timer in wheel


def test_an_empty_wheel_jumps_any_distance(wheel: Wheel[Timer]) -> None:
    assert wheel.advance(10**15) == []
    assert wheel.now == 10**15
    timer = Timer()
    wheel.schedule(timer, 10**15 + 3 * SLOTS)
    assert fired_at(wheel, timer, 10**15 + 4 * SLOTS) == [10**15 + 3 * SLOTS]


@pytest.mark.parametrize("tick", [3, 3 + 4 * SLOTS])
def test_scheduling_many_is_scheduling_each(wheel: Wheel[Timer], tick: int) -> None:
    before, crowd, after = Timer("before"), timers(50), Timer("after")
    wheel.schedule(before, tick)
    wheel.schedule_many(crowd, tick)
    wheel.schedule(after, tick)
    wheel.check()
    assert all(timer in wheel for timer in crowd)
    assert wheel.advance(tick) == [before, *crowd, after]


def test_the_callers_list_stays_the_callers(wheel: Wheel[Timer]) -> None:
    crowd = timers(3)
    wheel.schedule_many(crowd, 2)
    crowd.clear()
    due = wheel.advance(2)
    assert len(due) == 3
    wheel.rearm(due, 2)
    due.clear()
    assert len(wheel.advance(4)) == 3


@pytest.mark.parametrize("after", [1, SLOTS + 1])
def test_rearming_counts_from_each_timers_own_tick(wheel: Wheel[Timer], after: int) -> None:
    crowd = timers(6)
    for number, timer in enumerate(crowd):
        wheel.schedule(timer, 1 + number // 2)
    due = wheel.advance(3)
    wheel.rearm(due, 3 + after)
    wheel.check()
    assert [timer.tick for timer in crowd] == [4 + after, 4 + after, 5 + after, 5 + after, 6 + after, 6 + after]
    assert wheel.advance(6 + after) == crowd


def test_rearming_what_would_be_due_already_makes_it_due_at_the_next_tick(wheel: Wheel[Timer]) -> None:
    early, late = Timer("early"), Timer("late")
    wheel.schedule(early, 1)
    wheel.schedule(late, 18)
    wheel.rearm(wheel.advance(20), 4)
    wheel.check()
    assert (early.tick, late.tick) == (21, 22)


def test_the_load_of_a_tick_that_has_passed_is_that_of_the_next(wheel: Wheel[Timer]) -> None:
    wheel.advance(10)
    wheel.schedule_many(timers(4), 11)
    assert wheel.load(2) == 4


def test_the_occupancy_counts_all_rounds_of_a_slot(wheel: Wheel[Timer]) -> None:
    for tick in (1, 2, 2 + SLOTS, 2 + 9 * SLOTS, SLOTS):
        wheel.schedule(Timer(), tick)
    gone = Timer()
    wheel.schedule(gone, 1)
    wheel.cancel(gone)
    assert wheel.occupancy() == [1, 1, 3, 0, 0, 0, 0, 0]


def test_clearing_returns_everything_in_order_and_the_timers_can_be_used_again(wheel: Wheel[Timer]) -> None:
    ticks = [30, 4, 100, 4, 9]
    crowd = [Timer(tick) for tick in ticks]
    for timer, tick in zip(crowd, ticks, strict=True):
        wheel.schedule(timer, tick)
    wheel.advance(2)
    cleared = wheel.clear()
    wheel.check()
    assert [timer.name for timer in cleared] == sorted(ticks)
    assert (len(wheel), wheel.now, wheel.next_due_tick()) == (0, 2, None)
    assert not any(timer in wheel or wheel.cancel(timer) for timer in crowd)
    wheel.schedule_many(crowd, 4)
    assert wheel.advance(100) == crowd


def test_a_wheel_says_what_it_is(wheel: Wheel[Timer]) -> None:
    wheel.advance(5)
    wheel.schedule_many(timers(3), 9)
    assert repr(wheel) == "<Wheel slots=8 now=5 entries=3>"


@pytest.mark.parametrize("tick", [3, 3 * SLOTS])
def test_the_entries_of_a_tick_are_those_that_are_still_due_then(wheel: Wheel[Timer], tick: int) -> None:
    crowd = timers(4)
    wheel.schedule_many(crowd, tick)
    wheel.schedule(Timer("another"), tick + 1)
    wheel.cancel(crowd[1])
    assert wheel.at(tick) == [crowd[0], *crowd[2:]]
    assert wheel.at(tick - 1) == wheel.at(tick + SLOTS) == []
    wheel.cancel(crowd[0])
    wheel.schedule(crowd[0], tick)
    assert wheel.at(tick) == [*crowd[2:], crowd[0]], "each is there once, though its old place is not searched for"
    assert wheel.rearm(wheel.advance(tick), 2) == [tick + 2]
