"""Random sequences of calls, done to a timer and to a plain list of what is pending: both must say the same."""

from __future__ import annotations

import math
from collections import deque
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wheel_lock.errors import TimerStopped, TooManyTimeouts
from wheel_lock.runtime import loop as loop_module
from wheel_lock.runtime import timer as timer_module
from wheel_lock.runtime.notifier import Task
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout
from wheel_lock.testing import ManualClock

TICK_S = 0.01
MOST = 30
pick = st.integers(min_value=0, max_value=10**6)
ticks = st.integers(min_value=0, max_value=40)


class Tasks:
    """In place of the notifier: runs tasks at once."""

    def __init__(self) -> None:
        self.floods = 0

    def post_each(self, tasks: deque[Task]) -> None:
        self.floods += 1
        while tasks:
            task = tasks.popleft()
            task.task(task)


class TimerAgainstList(RuleBasedStateMachine):
    """Every rule is a call of the timer. Time is counted in halves of a tick, so that it is exact."""

    @initialize(slots=st.sampled_from([2, 8, 1024]), limited=st.booleans(), portions=st.booleans())
    def begin(self, slots: int, limited: bool, portions: bool) -> None:
        self.notifier = Tasks()
        self.patches: list[Any] = [
            patch.object(timer_module, "NOTIFIER", self.notifier),
            patch.object(loop_module, "NOTIFIER"),
            patch.object(HashedWheelTimer, "_start"),
        ]
        if portions:
            self.patches.append(patch.object(timer_module, "_LONGEST_TAKING_S", -1.0))
            self.patches.append(patch.object(timer_module, "_TAKING_STEP", 2))
        for each in self.patches:
            each.start()
        self.clock = ManualClock()
        self.most = MOST if limited else None
        self.timer = HashedWheelTimer(slots=slots, clock=self.clock, threaded=False, max_pending=self.most)
        self.halves = 0  # of a tick since the beginning
        self.at_tick = 0  # that the timer has reached
        self.pending: list[tuple[int, int, Timeout]] = []  # half tick that it is due at, number, timeout
        self.over: list[Timeout] = []
        self.ran: list[Timeout] = []
        self.number = 0
        self.stopped = False

    def teardown(self) -> None:
        for each in self.patches:
            each.stop()

    @rule(halves=ticks, whole=st.booleans())
    def new_timeout(self, halves: int, whole: bool) -> None:
        delay: float = 0 if whole else halves * TICK_S / 2
        if self.stopped:
            with pytest.raises(TimerStopped):
                self.timer.new_timeout(self.ran.append, delay)
        elif self.most is not None and len(self.pending) >= self.most:
            with pytest.raises(TooManyTimeouts, match=f"{MOST} timeouts are pending, the limit is {MOST}"):
                self.timer.new_timeout(self.ran.append, delay)
        else:
            timeout = self.timer.new_timeout(self.ran.append, delay)
            self.number += 1
            self.pending.append((self.halves + (0 if whole else halves), self.number, timeout))

    @rule(delay=st.sampled_from([math.nan, math.inf, -math.inf, 2e10, 10**400, True, None, "1", 1j, []]))
    def new_timeout_that_is_refused(self, delay: Any) -> None:
        with pytest.raises(ValueError, match="delay"):
            self.timer.new_timeout(self.ran.append, delay)

    @precondition(lambda self: self.pending)
    @rule(which=pick)
    def cancel(self, which: int) -> None:
        _, _, timeout = self.pending.pop(which % len(self.pending))
        assert timeout.cancel()
        assert timeout.cancelled
        self.over.append(timeout)

    @precondition(lambda self: self.over)
    @rule(which=pick)
    def cancel_what_is_over(self, which: int) -> None:
        timeout = self.over[which % len(self.over)]
        was_cancelled = timeout.cancelled
        assert not timeout.cancel()
        assert timeout.cancelled == was_cancelled

    @rule()
    def turn(self) -> None:
        while True:
            self.timer.turn()
            if not self.timer.busy:
                break

    @rule(halves=ticks)
    def time_passes(self, halves: int) -> None:
        self.turn()
        self.halves += halves
        self.clock._now = 1000.0 + self.halves * TICK_S / 2
        del self.ran[:]
        floods = self.notifier.floods
        self.timer.turn()
        tick = self.halves // 2
        if tick > self.at_tick:
            self.at_tick = tick
            if not self.stopped:
                # Due at the tick that is not before their time; what was late when it came, at the next tick.
                due = [each for each in self.pending if each[0] <= tick * 2]
                self.pending = [each for each in self.pending if each[0] > tick * 2]
                assert set(self.ran) == {timeout for _, _, timeout in due}
                assert self.notifier.floods == floods + bool(due)
                assert all(timeout.expired for timeout in self.ran)
                self.over += self.ran
        else:
            assert self.ran == []

    @rule()
    def the_thread_dies(self) -> None:
        self.timer._died(SystemExit())

    @precondition(lambda self: not self.stopped and self.number > 20)
    @rule()
    def stop(self) -> None:
        self.stopped = True
        left = {timeout for _, _, timeout in self.pending}
        assert self.timer.stop() == left
        assert self.timer.stop() == set()
        assert not any(timeout.cancel() or timeout.expired or timeout.cancelled for timeout in left)
        self.over += left
        self.pending = []

    @invariant()
    def both_agree(self) -> None:
        assert self.timer.pending == len(self.pending)
        self.timer.wheel.check()


TimerAgainstList.TestCase.settings = settings(max_examples=20, stateful_step_count=50)
TestTimerAgainstAList = TimerAgainstList.TestCase
