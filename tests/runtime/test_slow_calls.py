"""Callbacks that take longer than a second are named in the log while they still run."""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref

import pytest

from tests.support.background import EVENTUALLY_S
from tests.support.timers import NewTimer
from tests.support.waiting import eventually
from wheel_lock.runtime import slow_calls
from wheel_lock.runtime.notifier import Notifier
from wheel_lock.runtime.slow_calls import SlowCalls
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout
from wheel_lock.testing import ManualClock, settle

SLOW_S = 0.2


class SlowTask:
    """A callback that runs until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.began = threading.Event()

    def work(self, *arguments: object) -> None:
        self.began.set()
        self.go_on.wait(EVENTUALLY_S)


@pytest.fixture
def slow() -> SlowTask:
    return SlowTask()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer than this is slow; usually it is a second."""
    monkeypatch.setattr(slow_calls, "SLOW_S", SLOW_S)


Watched = tuple[HashedWheelTimer, Notifier, SlowCalls]


@pytest.fixture
def watched(new_timer: NewTimer) -> Watched:
    timer, notifier = new_timer(), Notifier()
    return timer, notifier, SlowCalls(timer, notifier)


def complaints(caplog: pytest.LogCaptureFixture, about: str = "") -> list[str]:
    """What was said of calls whose name contains `about`. On a busy machine any other may be slow, too."""
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text for text in said if "those behind it wait" in text and about in text]


def test_it_is_named_while_it_still_runs_and_once(
    watched: Watched, slow: SlowTask, caplog: pytest.LogCaptureFixture
) -> None:
    timer, notifier, calls = watched
    notifier.post(slow.work, "order:42", list(range(1_000_000)), "x" * 1_000_000)
    timer.post(calls.look_later)
    try:
        (complaint,) = eventually(lambda: complaints(caplog, "SlowTask.work('order:42', [0, 1, 2, 3, 4, 5, ...], 'x"))
        assert len(complaint) < 500
        said = re.search(r" runs for ([0-9.]+) s already", complaint)
        assert said is not None
        assert float(said[1]) >= SLOW_S
        looks = timer.turns
        eventually(lambda: timer.turns > looks + 1)  # it is watched for as long as it runs
        assert len(complaints(caplog, "SlowTask.work(")) == 1
    finally:
        slow.go_on.set()


def test_nothing_is_looked_after_when_all_is_done(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    timer, notifier, calls = watched
    notifier.post(lambda: None)
    timer.post(calls.look_later)
    eventually(lambda: timer.turns > 0 and timer.next_due_at() is None)
    assert complaints(caplog) == []


def test_one_of_several_tasks_that_are_due_together_is_named_and_not_the_others(
    timer: HashedWheelTimer, clock: ManualClock, slow: SlowTask, caplog: pytest.LogCaptureFixture
) -> None:
    def quick(timeout: Timeout) -> None:
        pass

    for task in (quick, slow.work, quick):
        timer.new_timeout(task, 1.0)
    settle(timer)
    clock.advance(1.0)
    assert slow.began.wait(EVENTUALLY_S)
    try:
        for _ in range(3):
            time.sleep(SLOW_S)
            clock.advance(SLOW_S + 0.02)
        eventually(lambda: complaints(caplog))
        (complaint,) = complaints(caplog)
        assert "SlowTask.work(<Timeout expired" in complaint
    finally:
        slow.go_on.set()


def test_nothing_of_a_slow_callback_is_kept_when_it_is_over(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    timer, notifier, calls = watched
    slow = SlowTask()
    gone = weakref.ref(slow)
    notifier.post(slow.work)
    timer.post(calls.look_later)
    eventually(lambda: complaints(caplog, "SlowTask.work("))
    slow.go_on.set()
    del slow
    eventually(lambda: gone() is None)
