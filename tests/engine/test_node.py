"""The node: one connection while it speaks, a second one when it is silent, and retries while none can be had."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

import pytest
import redis

from tests.engine.rig import START, TICK_S, Rig
from tests.support.background import EVENTUALLY_S
from wheel_lock.errors import LockUnavailable
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.greenlets import start_helper_thread


@pytest.mark.parametrize("timeout", [0.6, 30.0])
def test_a_silent_node_is_suspected_after_a_sixth_of_the_timeout(rig: Rig, timeout: float) -> None:
    rig.hold("a", timeout)
    due = START + timeout / 3
    rig.go_to(due + timeout / 6 - 2 * TICK_S)
    assert rig.ready
    assert rig.connector.attempts == 1
    rig.launch.slow = True
    rig.go_to(due + timeout / 6)
    assert not rig.ready
    assert len(rig.launch.held) == 1


def test_a_node_that_cannot_be_reached_is_tried_with_growing_pauses_which_begin_small_after_a_reply(rig: Rig) -> None:
    rig.hold("a", 30.0)
    rig.be_away(6.0)
    moments = rig.connector.attempted_at[1:]
    pauses = [later - earlier for earlier, later in zip([START, *moments], moments, strict=False)]
    for pause, wanted in zip(pauses, [0.02, 0.04, 0.08, 0.16, 0.32, *[0.5] * 20], strict=False):
        assert wanted * 0.75 - 0.011 <= pause <= wanted * 1.25 + 0.011
    assert len(pauses) >= 12
    rig.connector.refusal = None
    rig.go_on(1.0)
    rig.hold("b")  # a reply
    attempts = rig.connector.attempts
    rig.hang_up()
    rig.go_on(0.04)
    assert rig.connector.attempts == attempts + 1


@pytest.mark.parametrize(
    "reason",
    [
        redis.exceptions.AuthenticationError("WRONGPASS invalid username-password pair"),
        redis.exceptions.ResponseError("unknown command"),
        ValueError("a port must be a number"),
    ],
)
def test_a_setting_that_cannot_work_refuses_waiting_requests_at_once(rig: Rig, reason: Exception) -> None:
    rig.connector.refusal = reason
    attempt = rig.acquire("a")
    with pytest.raises(LockUnavailable, match=str(reason)) as caught:
        attempt.future.result()
    assert caught.value.__cause__ is reason
    assert rig.connector.attempts == 1
    assert rig.now == START
    rig.go_on(10.0)
    assert rig.connector.attempts == 1
    assert rig.acquiring == 0


class Unprintable(Exception):
    """An exception of a user's credential provider with a mistake of its own."""

    def __str__(self) -> str:
        raise AttributeError("reason")


def test_an_error_whose_text_cannot_be_had_is_one_failed_attempt(rig: Rig) -> None:
    lease = rig.hold("a", 30.0)
    rig.connector.refusal = Unprintable()
    rig.hang_up()
    rig.go_on(1.0)
    rig.connector.refusal = None
    rig.go_on(1.0)
    assert rig.ready
    assert rig.is_valid(lease)


def test_a_helper_thread_that_cannot_be_started_is_one_failed_attempt(rig: Rig) -> None:
    rig.hold("a", 30.0)
    launch = rig.engine.router.renewer.node._launch
    failures = 1

    def out_of_threads(attempt: Callable[[], None]) -> None:
        nonlocal failures
        failures -= 1
        rig.engine.router.renewer.node._launch = launch
        raise RuntimeError("can't start new thread")

    rig.engine.router.renewer.node._launch = out_of_threads
    rig.reconnect(2.0)
    assert failures == 0
    assert rig.connector.attempts == 2, "a node that has once failed to start a helper thread never connects again"


def test_a_helper_thread_is_started_without_waiting_for_it() -> None:
    returned, ran = threading.Event(), threading.Event()

    def start() -> None:
        start_helper_thread(ran.set)
        returned.set()

    with threading._active_limbo_lock:  # type: ignore[attr-defined]  # so that no thread of that module's can begin
        _thread.start_new_thread(start, ())
        assert returned.wait(EVENTUALLY_S)
        assert not ran.is_set()
    assert ran.wait(EVENTUALLY_S)


def test_a_connection_that_comes_after_the_last_turn_is_closed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.launch.slow = True
    rig.acquire("a")
    post = rig.timer.post

    def be_kept_from_running(call: Callable[[], object], domain: FailureDomain | None = None) -> None:
        monkeypatch.undo()
        rig.timer.stop()
        rig.turn()
        post(call, domain)

    monkeypatch.setattr(rig.timer, "post", be_kept_from_running)
    rig.launch.go_on()
    assert rig.server.take() == []
    assert rig.server.hung_up
