"""Wake-ups that come to nothing: whoever may publish can send them, and they cost at most a try a tick."""

from __future__ import annotations

import random

import pytest

from tests.engine.rig import NIL, array
from tests.engine.waiting_rig import Wait, WaitingRig, message
from wheel_lock.engine.pacing import Pace

TICK_S = 0.01
AT_ONCE = 8
pytestmark = pytest.mark.rig(fallback_s=1000.0)


def flood(rig: WaitingRig, expires_at: float, wake_ups: int = 100) -> int:
    """Forge wake-ups while the holder's lease goes on as it was; return how many tries they have cost."""
    tries = 0
    for _ in range(wake_ups):
        rig.wake("a")
        while commands := rig.server.take():
            tries += len(commands)
            left = array(round((expires_at - rig.now) * 1000))
            rig.say(*[NIL if command.what == "SET" else left for command in commands])
    return tries


def hold_off(rig: WaitingRig) -> tuple[Wait, float]:
    """A waiter who is refused until nothing but a wake-up helps, and when the holder's lease would end."""
    wait = rig.wait_first("a", timeout=30.0, fallback=1000.0)
    return wait, rig.now + 30.0


def test_within_one_step_the_first_are_heeded_and_no_more(rig: WaitingRig) -> None:
    _, expires_at = hold_off(rig)
    assert flood(rig, expires_at) == AT_ONCE
    assert flood(rig, expires_at) == 0


def test_after_that_it_is_one_try_a_tick(rig: WaitingRig) -> None:
    _, expires_at = hold_off(rig)
    flood(rig, expires_at)
    tries = 0
    for _ in range(50):
        rig.go_on(TICK_S)
        tries += len(rig.refuse(round((expires_at - rig.now) * 1000)))
        tries += flood(rig, expires_at)
    assert 20 <= tries <= 51


def test_an_honest_release_behind_them_is_found_at_the_next_tick(rig: WaitingRig) -> None:
    wait, expires_at = hold_off(rig)
    assert flood(rig, expires_at, AT_ONCE) == AT_ONCE
    rig.go_on(0.4 * TICK_S)
    rig.wake("a")
    assert rig.server.take() == []
    rig.go_on(0.7 * TICK_S)
    rig.grant(wait)


def test_channels_that_nobody_listens_to_are_not_worth_a_command_each(rig: WaitingRig) -> None:
    wait = rig.wait_first("a", fallback=1000.0)
    for _ in range(3):
        for number in range(200):
            rig.listener.say(message(b"stray:%d" % number))
        rig.turn()
    rig.listener.say(message(b"x" * 100_000))
    rig.turn()
    heard = rig.listen()
    assert len(heard) <= 16
    assert {what for what, *_ in heard} == {"UNSUBSCRIBE"}
    assert rig.connector.listeners.attempts == 1
    rig.wake("a")
    rig.grant(wait)


def test_no_order_of_events_allows_more_than_a_try_a_tick_for_long() -> None:
    for seed in range(50):
        random_ = random.Random(seed)
        pace, now, allowed = Pace(TICK_S), 100.0, 0
        expires_at = now + 30.0
        for _ in range(5000):
            now += random_.choice((0.0, 0.0, 0.001, 0.02))
            if pace.allows(now):
                allowed += 1
                pace.tried(now)
                pace.refused(now, round((expires_at - now) * 1000) if random_.random() < 0.9 else None)
        assert allowed <= (now - 100.0) / TICK_S + 2 * AT_ONCE + 1
