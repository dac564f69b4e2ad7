"""The death of the timer's thread: it is reported, what it kept counts as lost, and the next call works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.background import EVENTUALLY_S
from tests.support.timers import Member, NewTimer, ask, drain, kill, messages, nothing
from tests.support.waiting import eventually
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import settle
from wheel_lock.wheel import Wheel


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
        eventually(lambda: timer.deaths == 1, EVENTUALLY_S)
    else:
        kill(timer, error)
    assert timer.deaths == 1
    (message,) = eventually(lambda: messages(caplog, logging.CRITICAL), EVENTUALLY_S)
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


@pytest.mark.parametrize("error", [ValueError("on purpose"), SystemExit()])  # the latter as if it is killed once more
def test_members_are_notified_although_one_of_them_fails(
    timer: HashedWheelTimer, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    class Failing(Member):
        def end(self, how: End, reason: Exception) -> None:
            super().end(how, reason)
            if how is End.DIED:
                raise error

    members = [Failing() for _ in range(3)]
    for member in members:
        timer.attach(member)
    kill(started(timer))
    eventually(lambda: all(member.notes == [End.DIED] for member in members), EVENTUALLY_S)
    eventually(lambda: len(messages(caplog, logging.ERROR)) == 4, EVENTUALLY_S)  # three failures, one death
    started(timer)


def test_a_thread_that_is_killed_again_before_it_has_told_of_its_death_leaves_its_place(
    timer: HashedWheelTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member()
    timer.attach(member)
    started(timer)
    again = [SystemExit()]

    def clear(self: Wheel[Any], original: Callable[[Wheel[Any]], object] = Wheel.clear) -> None:
        if again:
            raise again.pop()
        original(self)

    monkeypatch.setattr(Wheel, "clear", clear)
    kill(timer)
    eventually(lambda: member.notes == [End.DIED], EVENTUALLY_S)
    assert not again
    started(timer)


def test_only_one_thread_runs_at_a_time(new_timer: NewTimer) -> None:
    # A thread that is dying still notifies the members; the next one must not be at work by then.
    timer = new_timer()
    together = threading.Event()
    at_work = threading.Event()

    class Slow(Member):
        def end(self, how: End, error: Exception) -> None:
            timer.post(at_work.set)  # as a caller would, who has not noticed
            together.set()
            at_work.wait(0.5)
            self.notes.append("at work" if at_work.is_set() else "alone")

    member = Slow()
    timer.attach(member)
    started(timer)
    timer.post(exit_thread)
    assert together.wait(EVENTUALLY_S)
    eventually(lambda: member.notes, EVENTUALLY_S)
    assert member.notes == ["alone"]
    assert at_work.wait(EVENTUALLY_S)


def test_a_death_after_the_stop_is_the_end(timer: HashedWheelTimer) -> None:
    timeout = timer.new_timeout(nothing, 1.0)
    kill(started(timer))
    assert timer.stop() == {timeout}
    timer.post(exit_thread)
    # The one that was killed may still be on its way out.
    eventually(lambda: timer.name not in [thread.name for thread in threading.enumerate()])
