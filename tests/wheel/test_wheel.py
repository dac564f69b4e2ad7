"""The wheel: by examples, and against a heap."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wheel_lock.wheel import Wheel, WheelEntry


class Timer(WheelEntry):
    """An entry with a name, so that a failure can be read."""

    __slots__ = ("name",)

    def __init__(self, name: object = "timer") -> None:
        self.tick = -1
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name} at {self.tick}>"


def timers(count: int) -> list[Timer]:
    return [Timer(number) for number in range(count)]


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


# Random sequences of calls, done to a wheel and to a heap: both must say the same, and the wheel must stay sound


sizes = st.sampled_from([2, 4, 8, 16, 1024])
pick = st.integers(min_value=0, max_value=10**6)
# A distance in ticks as (rotations, ticks beyond them), so that the edges of rotations are met often.
distances = st.tuples(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 40]), st.sampled_from([-1, 0, 1, 2, 3, 7]))


class Heap:
    """The oracle: timers in a heap by deadline and age; cancelled ones stay in it until they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._age: dict[Timer, int] = {}
        self._ages = 0

    def put(self, timer: Timer, tick: int) -> None:
        self._ages += 1
        self._age[timer] = self._ages
        heapq.heappush(self._heap, (tick, self._ages, timer))

    def cancel(self, timer: Timer) -> bool:
        return self._age.pop(timer, None) is not None

    def pop_until(self, tick: int) -> list[Timer]:
        due = []
        while (first := self.first()) is not None and first <= tick:
            due.append(heapq.heappop(self._heap)[2])
            del self._age[due[-1]]
        return due

    def first(self) -> int | None:
        while self._heap and self._age.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def load(self, tick: int) -> int:
        return sum(due == tick and self._age.get(timer) == age for due, age, timer in self._heap)

    @property
    def timers(self) -> list[Timer]:
        return list(self._age)


class WheelAgainstHeap(RuleBasedStateMachine):
    """Every rule is a call of the wheel."""

    @initialize(slots=sizes, now=st.sampled_from([0, 1, 7, 1023, 10**9]))
    def begin(self, slots: int, now: int) -> None:
        self.slots = slots
        self.wheel: Wheel[Timer] = Wheel(slots, now=now)
        self.heap = Heap()
        self.idle: list[Timer] = []  # fired or cancelled, to be used again
        self.count = 0

    def tick_at(self, distance: tuple[int, int]) -> int:
        return self.wheel.now + distance[0] * self.slots + distance[1]

    def put(self, timer: Timer, tick: int) -> None:
        self.heap.put(timer, max(tick, self.wheel.now + 1))

    @rule(distance=distances, which=pick, new=st.booleans())
    def schedule(self, distance: tuple[int, int], which: int, new: bool) -> None:
        self.count += 1
        timer = Timer(self.count) if new or not self.idle else self.idle.pop(which % len(self.idle))
        tick = self.tick_at(distance)
        self.wheel.schedule(timer, tick)
        self.put(timer, tick)

    @rule(distance=distances, count=st.sampled_from([0, 1, 2, 5, 40]))
    def schedule_many(self, distance: tuple[int, int], count: int) -> None:
        crowd = timers(count)
        tick = self.tick_at(distance)
        self.wheel.schedule_many(crowd, tick)
        for timer in crowd:
            self.put(timer, tick)

    @precondition(lambda self: self.heap.timers)
    @rule(which=pick, back=st.booleans())
    def cancel(self, which: int, back: bool) -> None:
        timer = self.heap.timers[which % len(self.heap.timers)]
        tick = timer.tick
        assert self.wheel.cancel(timer)
        assert self.heap.cancel(timer)
        assert not self.wheel.cancel(timer)
        if back:
            self.wheel.schedule(timer, tick)
            self.put(timer, tick)
        else:
            self.idle.append(timer)

    @precondition(lambda self: self.heap.timers)
    @rule(every=st.sampled_from([1, 2, 5]))
    def cancel_many(self, every: int) -> None:
        for timer in self.heap.timers[::every]:
            assert self.wheel.cancel(timer)
            assert self.heap.cancel(timer)
            self.idle.append(timer)

    @precondition(lambda self: self.heap.timers)
    @rule(which=pick)
    def schedule_twice(self, which: int) -> None:
        timer = self.heap.timers[which % len(self.heap.timers)]
        with pytest.raises(ValueError, match="already"):
            self.wheel.schedule(timer, self.wheel.now + 1)

    @rule(distance=distances, after=st.none() | distances, some=st.sampled_from([1, 2]))
    def advance(self, distance: tuple[int, int], after: tuple[int, int] | None, some: int) -> None:
        to_tick = max(self.tick_at(distance), self.wheel.now)
        due = self.wheel.advance(to_tick)
        assert due == self.heap.pop_until(to_tick)
        assert self.wheel.now == to_tick
        assert not any(timer in self.wheel or self.wheel.cancel(timer) for timer in due)
        if after is None:
            self.idle += due
            return
        again = due[::some]
        ticks = max(after[0] * self.slots + after[1], 1)
        for timer in again:
            self.put(timer, timer.tick + ticks)
        self.wheel.rearm(again, ticks)
        self.idle += [timer for timer in due if timer not in self.wheel]

    @rule()
    def advance_to_the_next_due_tick(self) -> None:
        tick = self.wheel.next_due_tick()
        if tick is not None:
            assert self.wheel.advance(tick - 1) == []
            due = self.wheel.advance(tick)
            assert due
            assert due == self.heap.pop_until(tick)
            self.idle += due

    @rule()
    def clear(self) -> None:
        everything = self.wheel.clear()
        assert everything == self.heap.pop_until(10**18)
        self.idle += everything

    @rule(ahead=st.integers(min_value=1, max_value=2000))
    def ask_for_the_load(self, ahead: int) -> None:
        tick = self.wheel.now + 1 + (ahead - 1) % self.slots  # within a rotation it is exact
        assert self.wheel.load(tick) == self.heap.load(tick)

    @invariant()
    def the_wheel_is_sound(self) -> None:
        self.wheel.check()

    @invariant()
    def wheel_and_heap_agree(self) -> None:
        assert self.wheel.next_due_tick() == self.heap.first()
        assert len(self.wheel) == len(self.heap.timers) == sum(self.wheel.occupancy())
        assert all(timer in self.wheel for timer in self.heap.timers)


WheelAgainstHeap.TestCase.settings = settings(max_examples=50, stateful_step_count=50)
TestWheelAgainstAHeap = pytest.mark.slow(WheelAgainstHeap.TestCase)
