"""The loop: messages, alarms and I/O on one thread, none of which can stop it, and sleep when there is no work."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from tests.support.background import EVENTUALLY_S, Background
from tests.support.timers import Gate, Member, NewTimer, ask, fall_asleep, kill, messages, timer_thread
from tests.support.waiting import eventually
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.loop import Flusher
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock, settle


def fail() -> None:
    raise ValueError("on purpose")


# Messages


def test_messages_are_dealt_with_in_order_on_the_one_thread(timer: HashedWheelTimer) -> None:
    seen: list[tuple[int, bool, threading.Thread]] = []
    ask(timer)
    for number in range(1000):
        timer.post(lambda number=number: seen.append((number, timer.in_thread, threading.current_thread())))  # type: ignore[misc]
    ask(timer)
    assert [number for number, _, _ in seen] == list(range(1000))
    assert all(in_thread for _, in_thread, _ in seen)
    assert {thread for _, _, thread in seen} == {timer_thread(timer)}
    assert timer_thread(timer).daemon
    assert not timer.in_thread
    done = threading.Event()
    timer.post(lambda: timer.post(lambda: timer.post(done.set)))  # what posts from the thread itself needs no other
    assert done.wait(EVENTUALLY_S)


def slow(number: int, seen: list[int]) -> None:
    time.sleep(0.002)
    seen.append(number)


def test_a_flood_of_messages_is_dealt_with_in_portions(by_hand: HashedWheelTimer) -> None:
    seen: list[int] = []
    for number in range(50):
        by_hand.post(partial(slow, number, seen))
    portions = []
    while len(seen) < 50:
        before = len(seen)
        by_hand.turn()  # which reads replies and what is due
        portions.append(len(seen) - before)
    assert seen == list(range(50))
    assert len(portions) > 2
    assert min(portions) > 0


def test_a_message_goes_on_in_later_turns_before_all_messages_behind_it(by_hand: HashedWheelTimer) -> None:
    seen: list[object] = []

    def go_on(left: int) -> None:
        seen.append(left)
        if left:
            by_hand.go_on_with(partial(go_on, left - 1))

    by_hand.post(partial(seen.append, "before"))
    by_hand.post(partial(go_on, 2))
    by_hand.post(partial(seen.append, "behind"))
    portions, goes_on = [], []
    for _ in range(3):
        by_hand.turn()
        portions.append(len(seen))
        goes_on.append(by_hand.goes_on)
    assert seen == ["before", 2, 1, 0, "behind"]
    assert portions == [2, 3, 5]
    assert goes_on == [True, True, False]


def test_a_part_of_a_job_makes_up_for_the_one_before_it_and_an_interruption_does_not_hide_a_failure(
    by_hand: HashedWheelTimer,
) -> None:
    interruption, failure, after = KeyboardInterrupt(), ValueError(), []
    outcomes: list[bool | BaseException] = [True, interruption, failure, interruption, False]

    def part(error: BaseException | None) -> bool:
        after.append(error)
        outcome = outcomes[len(after) - 1]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    by_hand.post(partial(by_hand.job, part, None))
    for _ in outcomes:
        with suppress(KeyboardInterrupt):
            by_hand.turn()
    assert after == [None, None, interruption, failure, failure]
    assert not by_hand.busy


def test_what_is_behind_a_message_that_goes_on_is_read_although_the_timer_is_stopped(timer: HashedWheelTimer) -> None:
    seen: list[str] = []
    with Gate(timer.post):
        timer.post(lambda: timer.go_on_with(partial(seen.append, "rest")))
        timer.post(partial(seen.append, "behind"))
        stopping = Background(timer.stop)
        eventually(lambda: timer.stopped)
    stopping.result()
    assert seen == ["rest", "behind"]


def test_the_thread_does_not_sleep_before_the_last_portion(timer: HashedWheelTimer) -> None:
    seen: list[int] = []
    for number in range(50):
        timer.post(partial(slow, number, seen))
    eventually(lambda: len(seen) == 50, EVENTUALLY_S)


def test_the_thread_knows_itself_from_its_first_turn(timer: HashedWheelTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    # The new thread may run for a while before the one that has started it does again.
    knows: list[bool] = []
    start = threading.Thread.start

    def start_and_be_kept_from_running(thread: threading.Thread) -> None:
        start(thread)
        eventually(lambda: knows, EVENTUALLY_S)

    monkeypatch.setattr(threading.Thread, "start", start_and_be_kept_from_running)
    timer.post(lambda: knows.append(timer.in_thread))
    eventually(lambda: knows, EVENTUALLY_S)
    assert knows == [True]


# Alarms


def test_an_alarm_rings_at_the_tick_that_contains_its_time(by_hand: HashedWheelTimer, clock: ManualClock) -> None:
    rung: list[float] = []
    by_hand.turn()
    by_hand.call_at(clock.now() + 0.037, rung.append)
    cancelled = by_hand.call_at(clock.now() + 0.033, lambda now: fail())
    for alarm in (cancelled, cancelled, None):
        by_hand.cancel(alarm)
    assert by_hand.next_due_at() == pytest.approx(1000.03)
    clock.jump(0.029)
    by_hand.turn()
    assert rung == []
    clock.jump(0.001)
    by_hand.turn()
    assert rung == [clock.now()]
    assert by_hand.next_due_at() is None


# Sleep


def test_with_nothing_to_do_the_thread_is_not_woken(new_timer: NewTimer) -> None:
    timer = new_timer()  # by the real clock
    timer.new_timeout(lambda timeout: None, 3600.0).cancel()
    rung = threading.Event()
    timer.post(lambda: timer.call_at(timer.clock.now() + 0.02, lambda now: rung.set()))
    assert rung.wait(EVENTUALLY_S)
    settle(timer)
    assert timer.next_due_at() is None
    turns = fall_asleep(timer)
    threading.Event().wait(0.3)  # thirty ticks
    assert timer.turns == turns


# I/O


def test_a_socket_with_the_number_of_another_does_not_get_its_events(by_hand: HashedWheelTimer) -> None:
    # Both are ready in one turn; whichever comes first replaces the other by one that gets the same descriptor.
    (one, there), (other, over_there) = socket.socketpair(), socket.socketpair()
    calls: list[socket.socket] = []
    made: list[socket.socket] = [one, there, other, over_there]

    def ready(mine: socket.socket, theirs: socket.socket) -> None:
        calls.append(mine)
        if len(calls) == 1:
            by_hand.unwatch(theirs)
            descriptor = theirs.fileno()
            theirs.close()
            made.extend(socket.socketpair())
            assert made[-2].fileno() == descriptor
            by_hand.watch(made[-2], selectors.EVENT_READ, lambda events: calls.append(made[-2]))

    by_hand.watch(one, selectors.EVENT_READ, lambda events: ready(one, other))
    by_hand.watch(other, selectors.EVENT_READ, lambda events: ready(other, one))
    there.send(b"x")
    over_there.send(b"x")
    by_hand.turn()
    assert len(calls) == 1
    for sock in made:
        sock.close()


# Members


@pytest.mark.parametrize("before", [0, 100], ids=["", "behind a flood of messages"])
def test_members_are_notified_of_the_stop_before_it(timer: HashedWheelTimer, before: int) -> None:
    stopped: list[bool] = []

    class Watching(Member):
        def end(self, how: End, error: Exception) -> None:
            timer.post(lambda: stopped.append(timer.in_thread))

    member = Watching()
    timer.attach(member)
    ask(timer)
    for _ in range(before):
        timer.post(lambda: time.sleep(0.001))  # together far more than one turn gives to its messages
    timer.stop()
    assert stopped == [True]  # what a member still had to do has been done


# Results that arrive in one turn are delivered to their callers together, at the latest at its end


READ = selectors.EVENT_READ


class Writer(Flusher):
    above = None

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def flush(self) -> None:
        self.seen.append("writing")

    def crashed(self, error: Exception) -> None: ...


def noting(seen: list[str], what: str) -> Callable[[], None]:
    return lambda: seen.append(what)


def test_outside_of_a_turn_they_are_delivered_at_once(by_hand: HashedWheelTimer) -> None:
    seen: list[str] = []
    by_hand.complete(noting(seen, "delivered"))
    assert seen == ["delivered"]
    by_hand.turn()
    by_hand.complete(noting(seen, "delivered"))
    assert seen == ["delivered"] * 2


def test_a_turn_is_replies_and_those_who_wait_for_them_then_ticks_messages_and_writing(
    by_hand: HashedWheelTimer, clock: ManualClock
) -> None:
    seen: list[str] = []
    pairs = [socket.socketpair() for _ in range(2)]

    def reply(events: int) -> None:
        seen.append("reply")
        by_hand.complete(noting(seen, "delivered"))

    def tick(now: float) -> None:
        seen.append("tick")
        by_hand.complete(noting(seen, "timeout delivered"))

    def message() -> None:
        seen.append("message")
        by_hand.flush_later(Writer(seen))

    for here, there in pairs:
        by_hand.watch(here, READ, reply)
        there.send(b"x")
    by_hand.call_at(clock.now() + 0.01, tick)
    by_hand.post(message)
    clock.jump(0.01)
    by_hand.turn()
    assert seen == ["reply", "reply", "delivered", "delivered", "tick", "message", "writing", "timeout delivered"]
    for here, there in pairs:
        by_hand.unwatch(here)
        here.close()
        there.close()


def test_one_that_fails_is_logged_and_the_others_are_delivered(
    by_hand: HashedWheelTimer, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    by_hand.post(lambda: by_hand.complete(lambda: 1 // 0))
    by_hand.post(lambda: by_hand.complete(noting(seen, "delivered")))
    by_hand.turn()
    assert seen == ["delivered"]
    assert len(messages(caplog, logging.ERROR)) == 1


def test_they_are_delivered_although_the_thread_dies_in_that_turn(new_timer: NewTimer) -> None:
    timer = new_timer()
    seen: list[str] = []
    for _ in range(2):
        timer.post(lambda: timer.complete(noting(seen, "delivered")))

    def die() -> None:
        timer.complete(noting(seen, "delivered"))
        raise SystemExit

    timer.post(die)
    eventually(lambda: timer.deaths == 1, EVENTUALLY_S)
    eventually(lambda: len(seen) == 3, EVENTUALLY_S)
    ask(timer)
    kill(timer)
    timer.complete(noting(seen, "at once"))
    assert seen[-1] == "at once"
