"""New and cancelled timeouts on their way to the thread: no wake-up is lost, none is for nothing, and nothing is kept."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from typing import Any

import pytest

from tests.support.background import EVENTUALLY_S, in_a_fork
from tests.support.interruptions import Interrupted, Interruption, at_every_place
from tests.support.timers import Garbage, NewTimer, ask, drain, fall_asleep, nothing, with_garbage_at_every_allocation
from tests.support.waiting import eventually
from wheel_lock.runtime import loop as loop_module
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout
from wheel_lock.testing import ManualClock, settle

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
