"""The watchdog over a timer's thread: a standstill is seen and said once, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.timers import Gate, NewTimer, ask, messages
from tests.support.waiting import eventually
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.watchdog import LOOK_S, STILL_S, Watchdog


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
