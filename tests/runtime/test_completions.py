"""Results that arrive in one turn are delivered to their callers together, at the latest at its end."""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable

import pytest

from tests.support.background import EVENTUALLY_S
from tests.support.timers import NewTimer, ask, kill, messages
from tests.support.waiting import eventually
from wheel_lock.runtime.loop import Flusher
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock

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
