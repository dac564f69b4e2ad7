"""What stands still: a timer's thread, which its watchdog sees and says once, and a callback that takes long."""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from tests.support.background import EVENTUALLY_S
from tests.support.timers import Gate, NewTimer, ask, messages
from tests.support.waiting import eventually
from wheel_lock.runtime import watchdog
from wheel_lock.runtime.notifier import Notifier
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout
from wheel_lock.runtime.watchdog import LOOK_S, STILL_S, SlowCalls, Watchdog
from wheel_lock.testing import ManualClock, settle


@pytest.fixture
def held(new_timer: NewTimer) -> Iterator[HashedWheelTimer]:
    """A timer whose thread stands still in a call."""
    timer = new_timer()
    with Gate(timer.post):
        yield timer


def checks(watchdog: Watchdog, count: int, *, since: float = 0.0, every_s: float = LOOK_S) -> list[bool]:
    """Check again and again, by a clock of the test's own; return at which checks the thread was seen to stand still."""
    seen: list[bool] = []
    for number in range(count):
        watchdog.look(since + number * every_s)
        seen.append(watchdog.standstill)
    return seen


ENOUGH = round(STILL_S / LOOK_S) + 2


def test_a_thread_that_does_not_turn_for_a_second_stands_still(
    held: HashedWheelTimer, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog(held)
    seen = checks(watchdog, ENOUGH)
    assert not any(seen[: ENOUGH - 3])
    assert seen[-1]
    (text,) = [message for message in messages(caplog) if "has not turned" in message]
    assert held.name in text
    assert f"{Gate.wait.__code__.co_filename}" in text  # the stack
    (record,) = [record for record in caplog.records if "has not turned" in record.getMessage()]
    assert record.levelname == "CRITICAL"
    assert record.__dict__["event"] == "standstill"


def test_it_is_said_once_whoever_sees_it(held: HashedWheelTimer, caplog: pytest.LogCaptureFixture) -> None:
    assert checks(Watchdog(held), ENOUGH + 20)[-1]
    assert checks(Watchdog(held), 2) == [False, True]  # who comes later need not wait for a second again
    assert len([message for message in messages(caplog) if "has not turned" in message]) == 1


def test_the_next_standstill_is_said_again(new_timer: NewTimer, caplog: pytest.LogCaptureFixture) -> None:
    timer = new_timer()
    watchdog = Watchdog(timer)
    for number in range(2):
        with Gate(timer.post):
            assert checks(watchdog, ENOUGH, since=100.0 * number)[-1]
        ask(timer)
        watchdog.look(100.0 * number + 50.0)
        assert not watchdog.standstill
    assert len([message for message in messages(caplog) if "has not turned" in message]) == 2


@pytest.mark.parametrize("every_s", [3 * LOOK_S, 3.0, 3600.0])
def test_time_in_which_the_process_did_not_run_does_not_count(
    held: HashedWheelTimer, caplog: pytest.LogCaptureFixture, every_s: float
) -> None:
    # Stopped, suspended, or kept by a call that keeps the interpreter: then the checks come late, too.
    assert not any(checks(Watchdog(held), 3 * ENOUGH, every_s=every_s))
    assert not messages(caplog)


def test_a_thread_that_sleeps_is_woken_and_found_alive(new_timer: NewTimer) -> None:
    timer = new_timer()
    ask(timer)
    watchdog = Watchdog(timer)
    for number in range(ENOUGH):
        turns = timer.turns
        watchdog.look(number * LOOK_S)
        eventually(lambda: timer.turns > turns)  # noqa: B023  # a wake is all that it takes
    assert not watchdog.standstill


def test_a_timer_without_a_thread_is_not_said_to_stand_still(new_timer: NewTimer) -> None:
    assert not any(checks(Watchdog(new_timer(threaded=False)), 2 * ENOUGH))
    assert not any(checks(Watchdog(new_timer()), 2 * ENOUGH))  # nothing has started it yet


# Callbacks that take longer than a second are named in the log while they still run


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
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer than this is slow; usually it is a second."""
    monkeypatch.setattr(watchdog, "SLOW_S", SLOW_S)


@pytest.fixture
def slow(soon: None) -> SlowTask:
    return SlowTask()


Watched = tuple[HashedWheelTimer, Notifier, SlowCalls]


@pytest.fixture
def watched(new_timer: NewTimer, soon: None) -> Watched:
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
