"""An error of our own, anywhere in what is done for waiters: they are notified, and no grant is left without an owner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.failing_call import failing_calls
from tests.engine.rig import OK, breaking
from tests.engine.waiting_rig import LINGER_S, Wait, WaitingRig, message
from wheel_lock.engine.waiting.long_waits import LongWaits
from wheel_lock.lease import EXTENDING

LONGEST_LOOK_S = 5.1  # limit after which a waiter without messages polls
FILES = (
    "engine/waiting/registry.py",
    "engine/waiting/waiter.py",
    "net/pubsub.py",
    "engine/requests/acquire.py",
    "engine/requests/base.py",
    "engine/requests/release.py",
)


def wake(rig: WaitingRig) -> None:
    """Tell whoever still listens."""
    for server in rig.connector.listeners.servers:
        server.say(message(b"wheel_lock:wake:{a}"))
    rig.turn()


def come_and_ask(rig: WaitingRig) -> list[Wait]:
    waits = [rig.waiter("a") for _ in range(3)]
    for wait in waits:
        rig.timer.post(wait.acquisition.begin, rig.engine)
    rig.go_on(0.0, rig.be_taken())
    return waits


def be_woken_and_hand_on(rig: WaitingRig) -> list[Wait]:
    waits = come_and_ask(rig)
    wake(rig)
    for _ in waits:
        rig.go_on(0.0, rig.agree)
        for wait in waits:
            if wait.granted:
                rig.release(wait.lease)
    rig.go_on(LINGER_S + 0.1, rig.agree)
    return waits


def give_up(rig: WaitingRig) -> list[Wait]:
    waits = [*come_and_ask(rig), rig.wait("a", blocking_timeout=0.05)]
    wake(rig)
    rig.give_up(waits[0])
    rig.go_on(0.1, rig.be_taken())
    rig.give_up(waits[1])
    wake(rig)
    rig.go_on(0.0, rig.agree)
    return waits


def lose_the_connections(rig: WaitingRig) -> list[Wait]:
    waits = come_and_ask(rig)
    wake(rig)
    for server in rig.servers:
        server.close()
    rig.go_on(0.5, rig.be_taken())
    return waits


def all_answered(rig: WaitingRig, waits: list[Wait]) -> bool:
    """Whether each wait that was not given up ends when the lock is free, or was ended by the count of deaths."""
    for _ in waits:
        if rig.engine.deaths == 1 or all(wait.future.done or wait.over for wait in waits):
            return True
        for wait in waits:
            if wait.granted and wait.lease.state <= EXTENDING:
                rig.release(wait.lease)
        rig.go_on(LONGEST_LOOK_S, rig.agree)
    return all(wait.future.done or wait.over for wait in waits)


@pytest.mark.parametrize("scene", [come_and_ask, be_woken_and_hand_on, give_up, lose_the_connections])
def test_waiters_get_an_error_wherever_it_is_raised_and_the_next_can_wait(
    scene: Callable[[WaitingRig], list[Wait]],
) -> None:
    for fault in failing_calls(FILES):
        with WaitingRig() as rig:
            with fault:
                waits = scene(rig)
            rig.go_on(0.2, rig.be_taken())
            if fault.where:
                held = set(rig.held)
                assert held <= {wait.lease for wait in waits if wait.granted}, f"kept without an owner: {fault.where}"
                assert all_answered(rig, waits), f"a caller is left waiting: {fault.where}"
            for wait in waits:
                rig.timer.post(wait.acquisition.give_up, rig.engine)
            rig.go_on(0.1, rig.agree)
            again, behind = rig.wait("a"), rig.wait("a")
            rig.go_on(0.1, rig.agree)
            assert again.granted, f"raised in {fault.where}"
            rig.release(again.lease)
            rig.go_on(0.1, rig.agree)
            assert behind.granted, f"raised in {fault.where}"
            rig.release(behind.lease)
            rig.go_on(1.0, rig.agree)
            rig.assert_clean()
            assert len(rig.failures) == bool(fault.where)
            rig.failures.clear()


def test_a_failure_in_the_warning_of_long_waits_ends_no_lock_and_no_wait(failing: WaitingRig) -> None:
    held = failing.wait("b", 60.0)
    failing.say(OK)
    wait = failing.wait("a", 60.0)
    with breaking(LongWaits, "_waits"):
        failing.go_on(11.0, failing.be_taken())
    assert failing.is_valid(held.lease)
    assert wait.goes_on
    failing.give_up(wait)
