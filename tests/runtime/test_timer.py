"""HashedWheelTimer: Netty's contract. Never early, cancelled or run but not both, and no task can hold a tick up."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
import weakref
from collections import deque
from typing import Any

import pytest

from tests.support.background import EVENTUALLY_S, in_a_fork
from tests.support.interruptions import Interrupted, Interruption, at_every_place
from tests.support.timers import (
    Garbage,
    Gate,
    NewTimer,
    ask,
    drain,
    fall_asleep,
    messages,
    nothing,
    timer_thread,
    with_garbage_at_every_allocation,
)
from tests.support.waiting import eventually
from wheel_lock.errors import TimerStopped, TooManyTimeouts
from wheel_lock.runtime import loop as loop_module
from wheel_lock.runtime import timer as timer_module
from wheel_lock.runtime.clock import SystemClock
from wheel_lock.runtime.loop import Loop
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import MANY_TIMERS, HashedWheelTimer, Timeout
from wheel_lock.runtime.weak_registry import WeakRegistry
from wheel_lock.testing import ManualClock, settle


def pass_time(timer: HashedWheelTimer, clock: ManualClock, seconds: float) -> None:
    """Let time pass for a timer that has heard of all its timeouts. (That a clock sees to this is tested elsewhere.)"""
    settle(timer)
    clock.advance(seconds)


# When


def test_tasks_run_in_the_order_in_which_they_are_due_and_of_one_tick_in_that_in_which_they_came(
    timer: HashedWheelTimer, clock: ManualClock
) -> None:
    ran: list[tuple[float, int]] = []
    expected = [(delay, number) for delay in (3.0, 0.5, 12.0, 0.02, 11.0, 1.0) for number in range(20)]
    for each in expected:
        timer.new_timeout(lambda timeout, each=each: ran.append(each), each[0])  # type: ignore[misc]
    settle(timer)
    clock.jump(20.0)
    drain()
    assert ran == sorted(expected)


def test_a_delay_of_many_days_is_a_delay_like_any_other(new_timer: NewTimer) -> None:
    timer = new_timer()  # by the real clock, which the selector sleeps by
    # More than 2**31 ms, more than a year, more than a lock may last.
    late = [timer.new_timeout(nothing, days * 86400.0) for days in (25.0, 400.0, 365.0 * 40)]
    while late:
        ran = threading.Event()
        settle(timer)
        timer.new_timeout(lambda timeout, ran=ran: ran.set(), 0.02)  # type: ignore[misc]
        assert ran.wait(EVENTUALLY_S)
        assert (timer.deaths, timer.pending) == (0, len(late))
        assert late.pop(0).cancel()  # from then on the next one is what the selector sleeps for


# Cancelling


def test_a_timeout_shows_its_state(timer: HashedWheelTimer) -> None:
    timeout = timer.new_timeout(nothing, 1.0)
    assert repr(timeout).startswith("<Timeout pending due_at=1001.000 task=")
    timeout.cancel()
    assert repr(timeout).startswith("<Timeout cancelled")
    assert timer.next_due_at() is None


# Stopping


def test_stopping_ends_the_thread_even_in_its_longest_sleep(timer: HashedWheelTimer) -> None:
    timer.new_timeout(nothing, 3600.0)
    settle(timer)
    thread = timer_thread(timer)
    assert timer.running
    timer.stop()
    assert not thread.is_alive()
    assert not timer.running
    assert timer.cpu_s() == 0.0


def test_a_task_may_stop_the_timer(timer: HashedWheelTimer, clock: ManualClock) -> None:
    left: list[set[Timeout]] = []
    timer.new_timeout(lambda timeout: left.append(timer.stop()), 1.0)
    other = timer.new_timeout(nothing, 2.0)
    pass_time(timer, clock, 1.0)
    drain()
    assert left == [{other}]


def test_the_thread_cannot_stop_itself(timer: HashedWheelTimer) -> None:
    refused: list[str] = []

    def stop() -> None:
        try:
            timer.stop()
        except RuntimeError as error:
            refused.append(str(error))

    settle(timer)
    timer.new_timeout(nothing, 1.0)
    settle(timer)
    timer.post(stop)
    settle(timer)
    assert refused == ["stop() cannot be called on the timer's own thread"]
    assert not timer.stopped
    assert timer.pending == 1


# Limits


@pytest.mark.parametrize(
    ("parameter", "bad"),
    [
        ("max_pending", [0, -1, 2.0, math.nan, math.inf, True, "3"]),
        ("tick_ms", [0, -1, 1001, 2**63, 2.5, math.nan, True, "10", None]),
        ("slots", [0, -2, 2.0, math.nan, True, "8", None]),
    ],
)
def test_a_setting_that_is_no_whole_number_in_range_is_refused(parameter: str, bad: list[Any]) -> None:
    for value in bad:
        with pytest.raises(ValueError, match=parameter):
            HashedWheelTimer(**{parameter: value})


@pytest.mark.parametrize("delay", [math.nan, math.inf, -math.inf, 2e10, 10**400, True, None, "1", 1j, []], ids=repr)
def test_a_delay_that_is_no_number_of_seconds_and_a_task_that_cannot_be_called_are_refused(
    by_hand: HashedWheelTimer, delay: Any
) -> None:
    for task, seconds, match in ((nothing, delay, "delay"), (delay, 1.0, "task")):
        with pytest.raises(ValueError, match=match):
            by_hand.new_timeout(task, seconds)
    assert by_hand.pending == 0


def test_no_timeout_is_taken_beyond_the_limit_or_after_a_stop_which_returns_those_that_are_left(
    new_timer: NewTimer, clock: ManualClock
) -> None:
    timer = new_timer(clock=clock, threaded=False, max_pending=2)
    first, second = (timer.new_timeout(nothing, delay) for delay in (1.0, 2.0))
    with pytest.raises(TooManyTimeouts, match="2 timeouts are pending, the limit is 2"):
        timer.new_timeout(nothing, 1.0)
    assert (first.cancel(), first.cancel()) == (True, False)
    third = timer.new_timeout(nothing, 0.0)
    assert timer.stop() == {second, third}
    assert timer.stop() == set()
    for timeout in (second, third):
        assert [timeout.cancel(), timeout.expired, timeout.cancelled] == [False] * 3
    with pytest.raises(TimerStopped):
        timer.new_timeout(nothing, 1.0)
    assert timer.pending == 0


def test_slots_are_rounded_up_to_a_power_of_two_as_in_netty(new_timer: NewTimer) -> None:
    for slots, rounded in [(1, 2), (2, 2), (3, 4), (512, 512), (1000, 1024), (1024, 1024), (1025, 2048)]:
        assert new_timer(slots=slots, threaded=False).wheel.slots == rounded


# Tasks that misbehave


def test_a_task_that_sleeps_delays_no_tick(timer: HashedWheelTimer, clock: ManualClock) -> None:
    rung: list[float] = []
    with Gate() as gate:
        timer.new_timeout(lambda timeout: gate.wait(), 1.0)
        timer.post(lambda: timer.call_at(1002.0, rung.append))
        other = timer.new_timeout(nothing, 3.0)
        pass_time(timer, clock, 3.0)
        assert rung == [1002.0]
        assert other.expired
    drain()


# Many timers


def test_very_many_timers_are_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = WeakRegistry[Loop]()  # the timers of other tests do not count
    for module in (loop_module, timer_module):
        monkeypatch.setattr(module, "LOOPS", loops)
    timers = [HashedWheelTimer(threaded=False) for _ in range(MANY_TIMERS - 1)]
    assert messages(caplog) == []
    timers += [HashedWheelTimer(threaded=False) for _ in range(6)]
    (message,) = messages(caplog, logging.WARNING)
    assert message.startswith(f"{MANY_TIMERS} timers exist")


# Finalisers: they run in the middle of whatever allocates, in whatever thread that is


def test_a_timeout_may_be_cancelled_in_a_finaliser_wherever_that_runs() -> None:
    def check() -> None:
        timer = HashedWheelTimer(max_pending=1, threaded=False)
        timeout = timer.new_timeout(nothing, 3600.0)

        def be_refused() -> None:
            # Refused or, where the finaliser was quicker, not.
            nonlocal timeout
            try:
                timeout = timer.new_timeout(nothing, 3600.0)
            except TooManyTimeouts:
                pass

        def new_garbage() -> None:
            mine = timeout
            Garbage(lambda: mine.cancel())

        with_garbage_at_every_allocation(be_refused, new_garbage)
        with_garbage_at_every_allocation(lambda: timer.pending, new_garbage)
        with_garbage_at_every_allocation(timer.stop, lambda: Garbage(lambda: timeout.cancel()))

    in_a_fork(check)


# Handlers of signals: they run in the middle of whatever the main thread does, and may wait for the timer's


def test_a_handler_that_waits_for_the_thread_is_served_wherever_it_runs_in_its_start(new_timer: NewTimer) -> None:
    timers: list[HashedWheelTimer] = []
    served: list[bool] = []

    def start(interruption: Interruption) -> None:
        timers.append(new_timer())
        interruption.begin()
        timers[-1].post(lambda: None)

    def wait() -> None:
        reply = threading.Event()
        timers[-1].post(reply.set)
        served.append(reply.wait(EVENTUALLY_S))

    for where in at_every_place(start, meanwhile=wait, raises=False):
        assert all(served), where
        assert len([thread for thread in threading.enumerate() if thread.name == timers[-1].name]) <= 1, where
    assert len(served) > 5


@pytest.mark.parametrize("what", ["new_timeout", "cancel"])
def test_a_handler_that_waits_for_a_task_is_served_wherever_it_runs(new_timer: NewTimer, what: str) -> None:
    timer = new_timer()
    ran: list[threading.Event] = []
    served: list[bool] = []

    def interrupted(interruption: Interruption) -> None:
        ran.append(reply := threading.Event())
        later = timer.new_timeout(nothing, 60.0)
        timer.new_timeout(lambda timeout: reply.set(), 0.02)
        interruption.begin()
        if what == "cancel":
            later.cancel()
        else:
            timer.new_timeout(nothing, 60.0)

    for where in at_every_place(interrupted, meanwhile=lambda: served.append(ran[-1].wait(EVENTUALLY_S)), raises=False):
        assert all(served), where
    assert len(served) > {"new_timeout": 3, "cancel": 1}[what]  # neither has many places for one


# New and cancelled timeouts on their way to the thread: no wake-up is lost, none is for nothing, and nothing is kept


FAR_S = 3600.0


@pytest.fixture
def never_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sleep counts as long, so only what is due before its end wakes the thread."""
    monkeypatch.setattr(loop_module, "_LINGER_S", 10 * FAR_S)


# Waking


@pytest.mark.usefixtures("never_long")
def test_what_is_due_after_the_end_of_its_sleep_does_not_wake_the_thread(new_timer: NewTimer) -> None:
    timer = new_timer()
    timer.new_timeout(nothing, FAR_S)
    ask(timer)
    turns = fall_asleep(timer)
    timeouts = [timer.new_timeout(nothing, FAR_S + 1.0) for _ in range(5000)]
    assert all(timeout.cancel() for timeout in timeouts[::2])
    assert fall_asleep(timer) == turns
    assert timer.pending == 2501


@pytest.mark.usefixtures("never_long")
def test_what_is_due_before_the_end_of_its_sleep_wakes_the_thread(new_timer: NewTimer) -> None:
    timer = new_timer()
    timer.new_timeout(nothing, FAR_S)
    for _ in range(5):
        fall_asleep(timer)
        ran = threading.Event()
        timer.new_timeout(lambda timeout, ran=ran: ran.set(), 0.0)  # type: ignore[misc]
        assert ran.wait(EVENTUALLY_S)


# Nothing is kept


class Job:
    """Whatever a task belongs to."""

    def do(self, timeout: Timeout) -> None: ...


@pytest.mark.parametrize("far", [False, True], ids=["", "while another is pending"])
def test_the_task_of_a_cancelled_timeout_is_dropped_by_its_canceller(new_timer: NewTimer, far: bool) -> None:
    timer = new_timer()
    if far:
        timer.new_timeout(nothing, FAR_S / 2)
    for pause in (False, True):
        job = Job()
        gone = weakref.ref(job)
        timeout = timer.new_timeout(job.do, FAR_S)
        if pause:
            fall_asleep(timer)
        dropped_on: list[int] = []
        weakref.finalize(job, lambda: dropped_on.append(threading.get_ident()))  # noqa: B023
        del job
        assert timeout.cancel()
        assert timeout.task is None
        assert dropped_on == [threading.get_ident()]
        assert gone() is None


def test_a_cancelled_timeout_is_dropped_in_the_middle_of_a_long_sleep(new_timer: NewTimer) -> None:
    timer = new_timer()
    timer.new_timeout(nothing, FAR_S)
    timeout = timer.new_timeout(nothing, FAR_S)
    fall_asleep(timer)
    assert timeout.cancel()
    eventually(lambda: not timer._changed, message="the thread has taken it")


def test_the_notifier_gets_the_last_reference_to_an_expired_timeout(
    by_hand: HashedWheelTimer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that is as quick as can be: it has run and dropped them before the timer's thread goes on.
    dropped: list[bool] = []
    jobs = [Job() for _ in range(3)]
    gone = [weakref.ref(job) for job in jobs]

    def run_at_once(tasks: deque[Any]) -> None:
        tasks.clear()
        dropped.extend(reference() is None for reference in gone)

    monkeypatch.setattr(NOTIFIER, "post_each", run_at_once)
    for job in jobs:
        by_hand.new_timeout(job.do, 1.0)
    by_hand.call_at(clock.now() + 1.0, lambda now: None)  # an entry of another group
    by_hand.new_timeout(jobs[0].do, 1.0).cancel()
    by_hand.turn()
    jobs.clear()
    del job
    clock.jump(2.0)
    by_hand.turn()
    assert dropped == [True] * 3


# Interruptions


@pytest.mark.parametrize("again_after", [None, 0, 2], ids=lambda places: f"again after {places}")
@pytest.mark.parametrize("max_pending", [None, 5])
def test_an_interrupted_new_timeout_leaves_nothing_pending(
    new_timer: NewTimer, max_pending: int | None, again_after: int | None
) -> None:
    timer = new_timer(clock=ManualClock(), max_pending=max_pending)
    settle(timer)
    ran: list[Timeout] = []

    def scene(interruption: Interruption) -> None:
        timeout: Timeout | None = None
        try:
            interruption.begin()
            timeout = timer.new_timeout(ran.append, 1.0)
        finally:
            interruption.end()
            assert timer.pending == (timeout is not None)
            if timeout is not None:
                assert timeout.cancel()

    for _ in at_every_place(scene, again_after=again_after):
        pass
    settle(timer)
    assert timer.next_due_at() is None
    assert ran == []


def test_an_interrupted_cancel_has_cancelled_or_not(new_timer: NewTimer) -> None:
    timer = new_timer(clock=ManualClock())

    def scene(interruption: Interruption) -> None:
        timeout = timer.new_timeout(nothing, 1.0)
        try:
            interruption.begin()
            timeout.cancel()
        except Interrupted:
            pass
        finally:
            interruption.end()
            assert timeout.cancelled == (timer.pending == 0)
            timeout.cancel()

    for _ in at_every_place(scene):
        pass
    settle(timer)
    assert timer.next_due_at() is None


def test_a_finaliser_may_set_and_cancel_timeouts_wherever_it_runs() -> None:
    def check() -> None:
        timer = HashedWheelTimer()
        seen: list[str] = []
        ask(timer)

        def set_two(who: str) -> None:
            timer.new_timeout(lambda timeout: seen.append(who), 0.0)
            assert timer.new_timeout(nothing, FAR_S).cancel()

        with_garbage_at_every_allocation(lambda: set_two("call"), lambda: Garbage(lambda: set_two("finaliser")))
        gc.collect()
        eventually(lambda: timer.pending == 0, EVENTUALLY_S)
        drain()
        assert seen.count("finaliser") == seen.count("call") > 0

    in_a_fork(check)


# The clock: the one that goes on while the machine is suspended


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
