"""The first try of a wait: as long as it is granted, it is all there is; whatever else happens, a waiter takes over."""

from __future__ import annotations

import gc

import pytest

from tests.engine.rig import NIL, OK, REFUSED, breaking, integer
from tests.engine.waiting_rig import WaitingRig
from wheel_lock.errors import LockServerError, LockUnavailable, TooManyLocks, WheelLockError
from wheel_lock.lock_types import EXCLUSIVE, FENCED, REENTRANT, Exclusive

kinds = pytest.mark.parametrize("kind", [EXCLUSIVE, FENCED, REENTRANT], ids=lambda kind: kind.name)


@kinds
def test_a_grant_needs_no_waiter(rig: WaitingRig, kind: Exclusive) -> None:
    wait = rig.wait("a", kind=kind)
    assert len(rig.server.take()) == 1
    rig.say(OK if kind is EXCLUSIVE else integer(int(kind.fenced) * 7))
    assert wait.granted
    assert wait.waiter is None
    assert wait.lease.fence == (7 if kind.fenced else None)
    assert rig.engine.leases.acquiring == 0
    assert rig.lines.in_flight == {}


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


def test_a_refusal_ends_the_wait_of_one_who_does_not_wait(rig: WaitingRig) -> None:
    wait = rig.wait("a", blocking=False)
    rig.say(NIL)
    assert wait.refused
    assert len(rig.lines) == 0


def test_those_who_come_meanwhile_share_the_answer(rig: WaitingRig) -> None:
    first = rig.wait("a")
    second = rig.wait("a")
    assert [command.what for command in rig.server.take()] == ["SET"]
    assert rig.lines.in_flight == {b"a": first.waiter}
    rig.say(OK)
    assert first.granted
    assert not second.future.done
    assert rig.line("a") is not None
    assert rig.line("a").held_here  # type: ignore[union-attr]
    assert rig.server.take() == []


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


def test_an_error_reply_fails_the_caller_with_it(rig: WaitingRig) -> None:
    wait = rig.wait("a")
    rig.say(b"-OOM command not allowed\r\n")
    assert isinstance(wait.error, LockServerError)
    assert wait.error.code == "OOM"


def test_the_limit_of_held_locks_is_that_of_tries_in_flight() -> None:
    with WaitingRig(max_held=1) as rig:
        first, second = rig.wait("a"), rig.wait("b")
        assert isinstance(second.error, TooManyLocks)
        rig.say(OK)
        assert first.granted


def test_a_refused_connection_ends_only_those_who_do_not_wait_for_the_server() -> None:
    with WaitingRig() as rig:
        rig.connector.refusal = REFUSED
        endless, endless_too = rig.wait("a"), rig.wait("a")
        limited, limited_too = rig.wait("a", blocking_timeout=4.0), rig.wait("a", blocking_timeout=4.0)
        rig.go_on(1.0)
        assert isinstance(endless.error, LockUnavailable)
        assert isinstance(endless_too.error, LockUnavailable)
        assert limited.goes_on
        assert limited_too.goes_on
        rig.connector.refusal = None
        rig.go_on(2.0, rig.agree)
        assert limited.granted
        rig.give_up(limited_too)
