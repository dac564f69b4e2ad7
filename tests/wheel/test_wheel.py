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


def test_a_number_of_slots_that_is_no_power_of_two_is_refused_by_name() -> None:
    bad: list[Any] = [0, 1, 3, 6, 1000, -8, 8.0, True, "8"]
    for slots in bad:
        with pytest.raises(ValueError, match=f"power of two.*{slots!r}"):
            Wheel(slots)


def test_a_wheel_has_1024_slots_by_default() -> None:
    assert len(Wheel[Timer]().occupancy()) == 1024


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
    assert wheel.advance(10**15 + 3 * SLOTS - 1) == []
    assert wheel.advance(10**15 + 3 * SLOTS) == [timer]


def test_the_callers_list_stays_the_callers(wheel: Wheel[Timer]) -> None:
    crowd = timers(3)
    wheel.schedule_many(crowd, 2)
    crowd.clear()
    due = wheel.advance(2)
    assert len(due) == 3
    wheel.rearm(due, 2)
    due.clear()
    assert len(wheel.advance(4)) == 3


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
