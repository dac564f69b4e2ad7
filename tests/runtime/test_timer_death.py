"""The death of the timer's thread: it is told of, nothing that it kept is believed, and the next call works."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.background import PATIENCE_S, Background
from tests.support.timers import Member, NewTimer, ask, drain, kill, messages, nothing, timer_thread
from tests.support.waiting import eventually
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout
from wheel_lock.testing import ManualClock, settle


def exit_thread() -> None:
    raise SystemExit


def started(timer: HashedWheelTimer) -> HashedWheelTimer:
    settle(timer)
    ask(timer)
    return timer


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError, None])
def test_a_thread_that_is_killed_or_exits_says_so(
    timer: HashedWheelTimer, caplog: pytest.LogCaptureFixture, error: type[BaseException] | None
) -> None:
    started(timer)
    if error is None:
        timer.post(exit_thread)
        eventually(lambda: timer.deaths == 1, PATIENCE_S)
    else:
        kill(timer, error)
    assert timer.deaths == 1
    (message,) = eventually(lambda: messages(caplog, logging.CRITICAL), PATIENCE_S)
    assert timer.name in message
    assert (error or SystemExit).__name__ in message
    started(timer)


def test_a_thread_that_the_end_of_the_interpreter_refuses_is_no_death(
    new_timer: NewTimer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = new_timer()
    ends = True

    def start(self: threading.Thread, original: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        if ends and self.name == timer.name:
            raise RuntimeError("can't create new thread at interpreter shutdown")  # as Python 3.12 and newer do
        original(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    timer.post(list)
    eventually(lambda: timer.deaths >= 1)
    ends = False
    started(timer)
    drain()
    assert messages(caplog, logging.WARNING) == []


def test_the_next_call_starts_it_again(timer: HashedWheelTimer, clock: ManualClock) -> None:
    first = timer_thread(started(timer))
    kill(timer)
    assert not timer.running
    ran: list[Timeout] = []
    timeout = timer.new_timeout(ran.append, 1.0)
    second = timer_thread(started(timer))
    assert second is not first
    clock.advance(1.0)
    drain()
    assert ran == [timeout]


def test_pending_timeouts_outlive_it(timer: HashedWheelTimer, clock: ManualClock) -> None:
    ran: list[Timeout] = []
    first, cancelled, second = (timer.new_timeout(ran.append, delay) for delay in (1.0, 1.5, 2.0))
    for deaths in (1, 2, 3):
        kill(started(timer))
        assert (timer.deaths, timer.pending) == (deaths, 3)
    assert cancelled.cancel()
    settle(timer)
    clock.advance(1.0)
    drain()
    assert ran == [first]
    clock.advance(1.0)
    drain()
    assert ran == [first, second]
    assert timer.pending == 0


def test_a_timeout_that_came_due_without_a_thread_is_run_late_and_once(new_timer: NewTimer) -> None:
    timer = new_timer()
    ran: list[Timeout] = []
    timeouts = [timer.new_timeout(ran.append, 0.001 * number) for number in range(20)]
    for _ in range(3):
        kill(started(timer))
    eventually(lambda: timer.pending == 0, PATIENCE_S)
    drain()
    assert sorted(ran, key=timeouts.index) == timeouts
    assert timer.deaths == 3


def test_messages_that_nobody_had_read_are_read_by_the_next(timer: HashedWheelTimer) -> None:
    seen: list[int] = []
    started(timer)
    hold, held = threading.Event(), threading.Event()

    def be_held_up() -> None:
        held.set()
        hold.wait(PATIENCE_S)

    timer.post(be_held_up)
    assert held.wait(PATIENCE_S)
    timer.post(exit_thread)
    for number in range(5):
        timer.post(lambda number=number: seen.append(number))  # type: ignore[misc]
    hold.set()
    eventually(lambda: seen == [0, 1, 2, 3, 4], PATIENCE_S)
    assert timer.deaths == 1


def test_members_are_told_and_one_that_fails_does_not_keep_it_from_the_others(
    timer: HashedWheelTimer, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Member):
        def thread_died(self) -> None:
            super().thread_died()
            raise ValueError("on purpose")

    members = [Failing() for _ in range(3)]
    for member in members:
        timer.attach(member)
    kill(started(timer))
    eventually(lambda: all(member.told == ["thread died"] for member in members), PATIENCE_S)
    eventually(lambda: len(messages(caplog, logging.ERROR)) == 4, PATIENCE_S)  # three failures, one death
    settle(timer)


def test_a_second_death_while_the_first_is_being_told_of_is_survived_too(timer: HashedWheelTimer) -> None:
    class Exiting(Member):
        def thread_died(self) -> None:
            super().thread_died()
            raise SystemExit  # as when it is killed once more just here

    members = [Exiting() for _ in range(3)]
    for member in members:
        timer.attach(member)
    started(timer)
    timer.post(exit_thread)
    eventually(lambda: timer.deaths, PATIENCE_S)
    eventually(lambda: timer.name not in [thread.name for thread in threading.enumerate()], PATIENCE_S)
    ask(timer)
    assert all(member.told for member in members)


def test_alarms_are_gone_for_their_owners_have_been_told(timer: HashedWheelTimer, clock: ManualClock) -> None:
    rung: list[float] = []
    timer.post(lambda: timer.call_at(1001.0, rung.append))
    kill(started(timer))
    started(timer)
    clock.advance(5.0)
    assert rung == []


def test_a_thread_that_dies_before_the_call_that_starts_it_returns_is_started_again(
    timer: HashedWheelTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The one that starts it may be kept from running for about as long as the new thread lives.
    start = threading.Thread.start

    def start_and_be_kept_from_running(thread: threading.Thread) -> None:
        start(thread)
        thread.join(0.3)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_and_be_kept_from_running)
        timer.post(exit_thread)
    eventually(lambda: timer.deaths == 1, PATIENCE_S)
    ask(timer)


def test_what_is_posted_by_others_while_it_dies_is_not_lost(new_timer: NewTimer) -> None:
    timer = new_timer()
    seen: list[int] = []
    stop = threading.Event()

    def post_many() -> int:
        number = 0
        while not stop.is_set():
            timer.post(lambda number=number: seen.append(number))  # type: ignore[misc]
            number += 1
            while len(seen) < number - 1000 and not stop.is_set():  # not more than the thread can take
                time.sleep(0.001)
        return number

    started(timer)
    callers = [Background(post_many) for _ in range(2)]
    try:
        for deaths in range(1, 11):
            timer.post(exit_thread)
            eventually(lambda deaths=deaths: timer.deaths == deaths, PATIENCE_S)  # type: ignore[misc]
    finally:
        stop.set()
    posted = sum(caller.result() for caller in callers)
    eventually(lambda: len(seen) == posted, PATIENCE_S, message=f"all {posted} were dealt with")


def test_only_one_thread_runs_at_a_time(new_timer: NewTimer) -> None:
    # A thread that is dying still tells the members; the next one must not be at work by then.
    timer = new_timer()
    together = threading.Event()
    at_work = threading.Event()

    class Slow(Member):
        def thread_died(self) -> None:
            timer.post(at_work.set)  # as a caller would, who has not noticed
            together.set()
            at_work.wait(0.5)
            self.told.append("at work" if at_work.is_set() else "alone")

    member = Slow()
    timer.attach(member)
    started(timer)
    timer.post(exit_thread)
    assert together.wait(PATIENCE_S)
    eventually(lambda: member.told, PATIENCE_S)
    assert member.told == ["alone"]
    assert at_work.wait(PATIENCE_S)


def test_a_death_after_the_stop_is_the_end(timer: HashedWheelTimer) -> None:
    timeout = timer.new_timeout(nothing, 1.0)
    kill(started(timer))
    assert timer.stop() == {timeout}
    timer.post(exit_thread)
    # The one that was killed may still be on its way out.
    eventually(lambda: timer.name not in [thread.name for thread in threading.enumerate()])
