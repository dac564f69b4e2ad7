"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock

NewTimer = Callable[..., HashedWheelTimer]


@pytest.fixture
def new_timer() -> Iterator[NewTimer]:
    """Makes timers, and stops them when the test is over."""
    timers: list[HashedWheelTimer] = []

    def make(**options: Any) -> HashedWheelTimer:
        timer = HashedWheelTimer(**options)
        timers.append(timer)
        return timer

    yield make
    for timer in timers:
        timer.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timer(new_timer: NewTimer, clock: ManualClock) -> HashedWheelTimer:
    """A timer with a thread, by a clock that the test moves."""
    return new_timer(clock=clock)


@pytest.fixture
def by_hand(new_timer: NewTimer, clock: ManualClock) -> HashedWheelTimer:
    """A timer without a thread: the test moves the clock, and then calls turn()."""
    return new_timer(clock=clock, threaded=False)
