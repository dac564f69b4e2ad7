"""The first try of a wait: as long as it is granted, it is all there is; whatever else happens, a waiter takes over."""

from __future__ import annotations

import gc

import pytest

from tests.engine.rig import OK, breaking
from tests.engine.waiting_rig import WaitingRig
from wheel_lock.errors import WheelLockError
from wheel_lock.lock_types import EXCLUSIVE


def test_nothing_of_a_grant_and_a_release_is_left_to_the_garbage_collector(rig: WaitingRig) -> None:
    rig.wait("warm")
    rig.say(OK)
    rig.server.take()
    gc.collect()
    gc.disable()
    try:
        wait = rig.wait("a")
        rig.say(OK)
        rig.let_go(wait)
        del wait
        rig.go_on(0.1)  # requests are remembered for a while, because their replies may be late
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [garbage for garbage in gc.garbage if type(garbage).__module__.startswith("wheel_lock")] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("method", ["plain_try", "parse_acquire"])
def test_a_failure_costs_the_caller_and_those_who_share_its_try(failing: WaitingRig, method: str) -> None:
    with breaking(type(EXCLUSIVE), method):
        waits = [failing.wait("a"), failing.wait("a")]
        if method == "parse_acquire":
            failing.say(OK)
    assert all(isinstance(wait.error, WheelLockError) for wait in waits)
    assert failing.lines.in_flight == {}
    assert failing.engine.leases.acquiring == 0
    failing.go_on(1.0, failing.agree)
    assert failing.wait("a").error is None
