"""What the tests of a release in parts have in common: posting one, and turning the timer until it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.engine.rig import Command, Rig
from wheel_lock.engine.future import Future
from wheel_lock.lease import Lease, State

PART = 10
MANY = 5 * PART


def post_release(rig: Rig, leases: list[Lease]) -> Future[Any]:
    """Post a release, and do not turn."""
    future: Future[Any] = Future(lambda: None)
    rig.timer.post(partial(rig.engine.release_many, leases, future), rig.engine)
    return future


def post_close(rig: Rig, timeout_s: float = 5.0) -> Future[None]:
    """Post a close, and do not turn."""
    closed: Future[None] = Future(lambda: None)
    rig.timer.post(lambda: rig.engine.close(timeout_s, closed), rig.engine)
    return closed


def half_released(rig: Rig, leases: list[Lease]) -> Future[Any]:
    """Post a release and turn once, so that one part has begun."""
    future = post_release(rig, leases)
    rig.timer.turn()
    assert [lease.state for lease in leases] == [State.RELEASING] * PART + [State.HELD] * (len(leases) - PART)
    return future


def turn_until(rig: Rig, reached: Callable[[], bool]) -> list[Command]:
    """Have the server agree to everything, turn by turn; return all commands."""
    commands: list[Command] = []
    for _ in range(100):
        commands += rig.server.agree()
        rig.timer.turn()
        if reached():
            return commands
    raise AssertionError("not within 100 turns")


def turn_times(rig: Rig, turns: int) -> None:
    for _ in range(turns):
        rig.timer.turn()


def released(commands: list[Command]) -> Counter[str]:
    return Counter(name for command in commands if command.what.startswith("release") for name in command.names)
