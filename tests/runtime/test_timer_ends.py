"""How a timer ends: the death of its thread, which is reported, a fork, and an owner that drops it without a stop()."""

from __future__ import annotations

import errno
import gc
import logging
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.background import EVENTUALLY_S, Background, in_a_fork
from tests.support.logged import recorded_warnings
from tests.support.timers import Gate, Member, NewTimer, ask, drain, fall_asleep, kill, messages, nothing
from tests.support.waiting import eventually
from wheel_lock.runtime import loop, native
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.loop import LOOPS
from wheel_lock.runtime.poller import Poller
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock, settle
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


def test_a_thread_that_dies_before_its_first_turn_is_not_started_over_and_over(
    timer: HashedWheelTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 3:
            monkeypatch.undo()

    def new_poller(waker: object) -> Poller:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(loop, "new_poller", new_poller)
    monkeypatch.setattr(native, "sleep", sleep)
    ask(timer)
    assert (timer.deaths, len(pauses)) == (4, 3)


def test_a_death_after_the_stop_is_the_end(timer: HashedWheelTimer) -> None:
    timeout = timer.new_timeout(nothing, 1.0)
    kill(started(timer))
    assert timer.stop() == {timeout}
    timer.post(exit_thread)
    # The one that was killed may still be on its way out.
    eventually(lambda: timer.name not in [thread.name for thread in threading.enumerate()])


# Fork: the child starts with nothing of the parent's and what it starts works; the parent does not notice


def test_the_child_has_an_empty_timer_and_the_parents_goes_on(timer: HashedWheelTimer, clock: ManualClock) -> None:
    ran: list[str] = []
    alarms: list[Alarm] = []
    inherited = timer.new_timeout(lambda timeout: ran.append("inherited"), 1.0)
    for delay_s in (1.0, 3600.0):
        timer.post(lambda delay_s=delay_s: alarms.append(timer.call_at(timer.now + delay_s, lambda now: None)))  # type: ignore[misc]
    member = Member()
    timer.attach(member)
    settle(timer)
    ask(timer)

    def check() -> None:
        assert not timer.running
        assert timer.pending == 0
        assert timer.next_due_at() is None
        assert not any(alarm in timer.wheel for alarm in alarms)
        assert member.notes == [End.FORKED]
        assert not inherited.cancel()
        timer.new_timeout(lambda timeout: ran.append("own"), 2.0)
        settle(timer)
        assert timer.running
        clock.advance(5.0)
        drain()
        assert ran == ["own"]
        in_a_fork(lambda: ask(timer))
        assert timer.stop() == set()

    with Gate(timer.post):
        timer.post(lambda: ran.append("unread message"))
        in_a_fork(check)
    ask(timer)
    assert ran == ["unread message"]
    assert timer.running
    assert timer.pending == 1
    assert member.notes == []
    assert all(alarm in timer.wheel for alarm in alarms)
    clock.advance(1.0)
    drain()
    assert ran == ["unread message", "inherited"]


def test_a_message_in_the_child_does_not_wake_the_parent(timer: HashedWheelTimer) -> None:
    ask(timer)
    turns = fall_asleep(timer)

    def check() -> None:
        for _ in range(20):
            ask(timer)
            timer.wake()

    in_a_fork(check)
    assert timer.turns == turns


def test_what_the_parent_watches_stays_watched(timer: HashedWheelTimer) -> None:
    here, there = socket.socketpair()
    with here, there:
        read: list[bytes] = []
        timer.post(lambda: timer.watch(here, selectors.EVENT_READ, lambda events: read.append(here.recv(10))))
        ask(timer)

        def check() -> None:
            ask(timer)
            there.send(b"from child")  # which the parent reads, and not the child
            ask(timer)
            assert read == []
            timer.stop()

        in_a_fork(check)
        eventually(lambda: read == [b"from child"], EVENTUALLY_S)
        there.send(b"x")
        eventually(lambda: read == [b"from child", b"x"], EVENTUALLY_S)
        timer.post(lambda: timer.unwatch(here))
        ask(timer)


def test_a_fork_while_another_thread_is_inside_blocks_no_thread(new_timer: NewTimer) -> None:
    timer = new_timer(max_pending=10_000)
    stop = threading.Event()

    def use_it_all_the_time() -> None:
        while not stop.is_set():
            timer.new_timeout(nothing, 3600.0).cancel()

    def check() -> None:
        timeout = timer.new_timeout(nothing, 3600.0)
        ask(timer)
        assert timeout.cancel()
        timer.stop()

    callers = [Background(use_it_all_the_time) for _ in range(2)]
    try:
        for _ in range(2):
            in_a_fork(check)
    finally:
        stop.set()
    for caller in callers:
        caller.result()


def test_the_shared_timer_of_the_child_is_its_own_and_one_that_was_stopped_is_replaced() -> None:
    timer = HashedWheelTimer.shared()
    ask(timer)

    def check() -> None:
        mine = HashedWheelTimer.shared()
        assert not mine.running
        ask(mine)
        mine.stop()
        again = HashedWheelTimer.shared()
        assert again is not mine
        assert not again.stopped

    in_a_fork(check)
    ask(timer)
    assert not timer.stopped


@pytest.mark.parametrize("stopped_before", [True, False])
def test_a_stopped_timer_stays_stopped_in_the_child(timer: HashedWheelTimer, stopped_before: bool) -> None:
    if stopped_before:
        ask(timer)
    timer.stop()

    def check() -> None:
        assert timer.stopped
        assert timer.stop() == set()
        assert timer in LOOPS

    in_a_fork(check)


# A timer that its owner has dropped without a stop(): what waits on it still comes, and then nothing is left of it


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def warned() -> Iterator[list[str]]:
    with recorded_warnings() as texts:
        yield texts
        drain()


def is_gone(reference: weakref.ref[HashedWheelTimer], name: str) -> bool:
    gc.collect()
    return reference() is None and name not in {thread.name for thread in threading.enumerate()}


def test_an_idle_one_is_collected_with_its_thread_and_its_descriptors(warned: list[str]) -> None:
    gc.collect()
    drain()
    before = descriptors()
    timers = [started(HashedWheelTimer()) for _ in range(3)]
    assert descriptors() > before
    names = [timer.name for timer in timers]
    references = [weakref.ref(timer) for timer in timers]
    del timers
    for reference, name in zip(references, names, strict=True):
        eventually(lambda reference=reference, name=name: is_gone(reference, name), interval_s=0.05)  # type: ignore[misc]
    eventually(lambda: descriptors() <= before)
    eventually(lambda: len(warned) == 3)
    assert sorted(warned) == sorted(f"the timer {name} was dropped without stop()" for name in names)


def test_what_is_pending_on_it_still_comes(warned: list[str]) -> None:
    ran = threading.Event()
    HashedWheelTimer().new_timeout(lambda timeout: ran.set(), 0.3)
    gc.collect()
    assert ran.wait(EVENTUALLY_S)
    eventually(lambda: gc.collect() >= 0 and warned, interval_s=0.05)


def test_one_that_was_stopped_or_never_ran_is_collected_without_a_word(warned: list[str]) -> None:
    gc.collect()
    before = descriptors()
    stopped, unused = started(HashedWheelTimer()), HashedWheelTimer()
    stopped.stop()
    references = [weakref.ref(stopped), weakref.ref(unused)]
    del stopped, unused
    eventually(lambda: gc.collect() >= 0 and not any(reference() for reference in references), interval_s=0.05)
    eventually(lambda: descriptors() <= before)
    drain()
    assert warned == []
