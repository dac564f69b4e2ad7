"""An error of the library's own, anywhere in what the timer's thread does for leases and for waiters."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tests.engine.rig import OK, Rig, breaking
from tests.engine.waiting_rig import LINGER_S, Wait, WaitingRig, message
from tests.support.draws import some_of
from wheel_lock.engine.waiting.long_waits import LongWaits
from wheel_lock.lease import EXTENDING
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.loop import Loop

_TURNS = (guarded.__code__, Loop.turn.__code__)
_NONE = 1_000_000
_MOST = 40


def _in_a_turn(frame: FrameType | None) -> bool:
    """Whether it is the timer's thread that calls, and not the test."""
    while frame is not None and frame.f_code not in _TURNS:
        frame = frame.f_back
    return frame is not None


class FailingCall:
    """Raises MemoryError in the nth call of a function of some files in a turn while it is installed.

    Of calls of one function from one line three count.
    """

    def __init__(self, nth: int, files: tuple[str, ...]) -> None:
        self._left = nth
        self._files = files
        self._calls: Counter[tuple[object, ...]] = Counter()
        self.where = ""

    def __enter__(self) -> FailingCall:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.where and event == "call" and frame.f_code.co_filename.endswith(self._files) and _in_a_turn(frame):
            caller = frame.f_back
            place = (frame.f_code, caller and (caller.f_code, caller.f_lineno))
            self._calls[place] += 1
            self._left -= self._calls[place] <= 3
            if self._left < 0:
                self.where = frame.f_code.co_qualname
                sys.settrace(None)
                raise MemoryError(f"raised in {self.where}")


def failing_calls(files: tuple[str, ...]) -> Iterator[FailingCall]:
    """Yield one that raises nothing, for a scene that is the same each time; then some that raise in one of its calls."""
    none = FailingCall(_NONE, files)
    yield none
    count = _NONE - none._left
    assert count > 20
    for nth in some_of(count, _MOST):
        yield FailingCall(nth, files)


OF_RENEWALS = (
    "engine/renewal/flow.py",
    "engine/renewal/renewer.py",
    "engine/renewal/retries.py",
    "engine/leases.py",
    "net/node.py",
    "net/connection.py",
    "wheel_lock/lease.py",
)


def test_each_lease_goes_on_or_is_reported_lost_in_time_and_others_can_be_had() -> None:
    for fault in failing_calls(OF_RENEWALS):
        with Rig() as rig:
            leases = [rig.hold(name) for name in "ab"]
            with fault:
                rig.go_on(1.5, rig.agree)
            rig.go_on(5.0, rig.agree)
            losses = dict(rig.losses)
            assert len(losses) == len(rig.losses), f"reported twice: {fault.where}"
            for lease in leases:
                if lease in losses:
                    assert losses[lease].at <= losses[lease].deadline, f"reported too late: {fault.where}"
                    assert not rig.is_valid(lease)
                else:
                    assert rig.is_valid(lease), f"no loss was reported: {fault.where}"
                    assert lease.renewals >= 4, f"it is no longer renewed: {fault.where}"
            rig.hold("c")
            assert len(rig.failures) == bool(fault.where)
            rig.failures.clear()


LONGEST_LOOK_S = 5.1  # limit after which a waiter without messages polls
OF_WAITS = (
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
    for fault in failing_calls(OF_WAITS):
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
