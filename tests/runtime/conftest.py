"""Fixtures: a timer without a thread."""

from __future__ import annotations

import pytest

from tests.support.timers import NewTimer
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock


@pytest.fixture
def by_hand(new_timer: NewTimer, clock: ManualClock) -> HashedWheelTimer:
    """A timer without a thread: the test moves the clock, and then calls turn()."""
    return new_timer(clock=clock, threaded=False)
