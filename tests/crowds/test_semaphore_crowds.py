"""The permits of a semaphore across processes: fewer of them while more are held, and those of the dead."""

from __future__ import annotations

import time
from itertools import cycle, islice

import pytest

from tests.crowds.actors import CLOCKS_S, LOOK_S, OUTLIVED_S, TIMEOUT_S, Actor, expiries
from tests.support.redis_server import RedisServer
from tests.support.standstill import Standstills
from tests.support.waiting import eventually
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

NAME = "pool"
A_WHILE_S = 0.3  # a waiter has looked by then


def test_permits_taken_away_while_they_are_held_are_given_to_nobody(
    redis_server: RedisServer, context: LockContext
) -> None:
    with Actor(redis_server.url) as one, Actor(redis_server.url) as other, Actor(redis_server.url) as waiter:
        holders = [(actor, f"{number}") for number, actor in enumerate(islice(cycle([one, other]), 6))]
        for actor, hand in holders:
            actor.hold(hand, NAME, kind="permit", permits=6, timeout=TIMEOUT_S)
        for number in range(3):
            waiter.order("acquire", hand=f"{number}", kind="permit", name=NAME, permits=6, timeout=TIMEOUT_S)
        eventually(lambda: redis_server.admin.pubsub_channels("wheel_lock:wake:permit:*"), message="they wait")
        context.semaphore(NAME, 6).set_permits(2)
        time.sleep(OUTLIVED_S)
        assert not waiter.deeds()
        for left, (actor, hand) in enumerate(holders[:4]):
            actor.let_go(hand, NAME)  # which it held until then, although it was one too many
            time.sleep(A_WHILE_S)
            assert not waiter.deeds(), f"somebody was let in while {5 - left} were held"
        for number, (actor, hand) in enumerate(holders[4:], 1):
            actor.let_go(hand, NAME)
            eventually(lambda: len(waiter.deeds("acquire")) >= number)  # noqa: B023  # it is called at once
            time.sleep(A_WHILE_S)
            assert len(waiter.deeds("acquire")) == number
        context.semaphore(NAME, 6).set_permits(None)
        eventually(lambda: len(waiter.deeds("acquire")) == 3, message="the last is let in when there are six again")
        for number in range(3):
            waiter.let_go(f"{number}", NAME)


def test_the_permit_of_a_killed_process_comes_free_after_its_timeout(
    redis_server: RedisServer, context: LockContext, standstills: Standstills
) -> None:
    mine = context.semaphore(NAME, 3, 30.0)
    mine.acquire()
    with Actor(redis_server.url) as victim, Actor(redis_server.url) as waiter:
        for hand in "ab":
            victim.hold(hand, NAME, kind="permit", permits=3, timeout=TIMEOUT_S)
        for hand in "abc":
            waiter.order("acquire", hand=hand, kind="permit", name=NAME, permits=3, timeout=TIMEOUT_S)
        time.sleep(OUTLIVED_S)
        assert not waiter.deeds(), "permits of those who live are renewed"
        looked, left_s = time.monotonic(), min(expiries(redis_server, NAME))  # the third permit has longer
        victim.kill()
        eventually(lambda: len(waiter.deeds("acquire")) == 2)
        for deed in waiter.deeds("acquire"):
            assert left_s - CLOCKS_S < deed.after - looked
            assert deed.took(looked, standstills) < TIMEOUT_S + LOOK_S
        time.sleep(A_WHILE_S)
        assert len(waiter.deeds("acquire")) == 2, "the third permit is held"
        mine.release()
        eventually(lambda: len(waiter.deeds("acquire")) == 3)
