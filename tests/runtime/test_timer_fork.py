"""Fork: the child starts with nothing of the parent's and what it starts works; the parent does not notice."""

from __future__ import annotations

import selectors
import socket
import threading

import pytest

from tests.support.background import EVENTUALLY_S, Background, in_a_fork
from tests.support.timers import Gate, Member, NewTimer, ask, drain, fall_asleep, nothing
from tests.support.waiting import eventually
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.loop import LOOPS
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock, settle


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


def test_the_shared_timer_of_the_child_is_its_own() -> None:
    timer = HashedWheelTimer.shared()
    ask(timer)

    def check() -> None:
        mine = HashedWheelTimer.shared()
        assert not mine.running
        ask(mine)
        mine.stop()

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
