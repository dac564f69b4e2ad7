"""The clock: the one that goes on while the machine is suspended."""

from __future__ import annotations

import time

import pytest

from wheel_lock.runtime.clock import SystemClock
from wheel_lock.runtime.timer import HashedWheelTimer


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no CLOCK_BOOTTIME")
def test_it_is_the_clock_that_counts_suspension() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = SystemClock().now()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= now <= after


def test_it_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.now() for _ in range(10_000)]
    assert readings == sorted(readings)


def test_a_timer_lives_by_the_now_of_a_kind_of_it() -> None:
    class Shifted(SystemClock):
        @staticmethod
        def now() -> float:
            return 5000.0

    timer = HashedWheelTimer(clock=Shifted(), threaded=False)
    timer.turn()
    assert timer.now == 5000.0
