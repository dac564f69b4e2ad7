"""The node: one connection while it speaks, a second one when it is silent, and retries while none can be had."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.engine.rig import OK, START, TICK_S, Attempt, Rig, names, runs
from tests.support.background import EVENTUALLY_S
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.execution import LATEST
from wheel_lock.errors import LockTimeout, LockUnavailable
from wheel_lock.lease import State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.net import connection, node
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


# Room: what waits for a server that reads nothing, or answers nothing, and what goes ahead of it


FEW = 20


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests are as many as usually are very many."""
    monkeypatch.setattr(node, "MOST_UNANSWERED", FEW)
    monkeypatch.setattr(node, "MOST_SUSPECTED", FEW)


@pytest.fixture
def crowded(few: None) -> Iterator[Rig]:
    """A rig whose connection stands and has room for a few."""
    with Rig() as rig:
        rig.hold("warm-up", 30.0)
        yield rig


def ask(rig: Rig, count: int, first: int = 0) -> list[Attempt]:
    return [rig.acquire(f"lock:{number}", 30.0) for number in range(first, first + count)]


def asked(rig: Rig) -> list[str]:
    """The names for which SETs have arrived since the last call."""
    return [name for command in rig.server.take() if command.what in ("SET", "acquire_many") for name in command.names]


def test_past_the_bound_callers_wait_in_the_order_of_their_calls(crowded: Rig) -> None:
    attempts = ask(crowded, 3 * FEW)
    assert asked(crowded) == names(FEW)
    assert all(not attempt.request.maybe_executed for attempt in attempts[FEW:])
    call, read = EXCLUSIVE.locked(b"another"), EXCLUSIVE.parse_locked
    question: Future[Any] = crowded.ask(lambda future: crowded.engine.query("another", call, read, future))
    crowded.say(*[OK] * 5)
    assert asked(crowded) == names(3 * FEW)[FEW : FEW + 5]
    for _ in range(2):
        assert not question.done
        crowded.say(*[OK] * FEW)
        crowded.server.take()
    crowded.say(*[OK] * (FEW - 5), b":1\r\n")
    assert question.result() is True
    assert all(attempt.future.result() for attempt in attempts)


def test_what_is_about_leases_in_hand_goes_ahead_of_what_waits(few: None) -> None:
    with Rig(response_timeout_s=30.0) as rig:
        first, second, third = (rig.hold(name, 3.0) for name in ("first", "second", "third"))
        attempts = ask(rig, 3 * FEW)
        rig.server.take()
        rig.release(first)
        rig.extend(second, 5.0)
        assert runs(rig.server.take()) == [("release", 1), ("extend", 1)]
        rig.go_to(START + 1.0)
        assert rig.server.one("renew").names == ["third"]
        assert third.state is State.RENEWING
        assert not any(attempt.future.done for attempt in attempts)


def test_a_socket_that_takes_no_more_has_callers_wait_and_unsent_ones_taken_back(rig: Rig) -> None:
    rig.hold("warm-up", 300.0)
    long = "n" * 400
    attempts = [rig.acquire(f"{long}:{number}", 300.0) for number in range(5000)]
    assert rig.channel._writing
    assert rig.channel._out_bytes < connection.MOST_QUEUED_BYTES
    sent = sum(attempt.request.maybe_executed for attempt in attempts)
    assert sent < len(attempts)
    rig.be_silent(5.1)
    assert all(isinstance(attempt.future.error, LockTimeout) for attempt in attempts)
    rig.go_on(0.0)
    arrived: list[str] = []
    for _ in range(200):
        commands = rig.server.take()
        arrived += [f"{command.what} {name}" for command in commands for name in command.names]
        rig.turn()
    tried = {entry.partition(" ")[2] for entry in arrived if entry.startswith("SET ")}
    cleaned = {entry.partition(" ")[2] for entry in arrived if entry.startswith("release_many ")}
    assert 0 < len(tried) < 5000
    assert cleaned == tried


def test_a_suspected_connection_without_waiting_callers_is_dropped_with_one_clean_up(crowded: Rig) -> None:
    rig = crowded
    (warm,) = rig.held
    rig.release(warm)
    rig.agree()
    attempts = ask(rig, FEW)
    silent = rig.server
    rig.be_silent(5.1)
    assert all(attempt.future.done for attempt in attempts)
    assert not rig.ready
    assert rig.connected
    rig.connector.refusal = TimeoutError("no answer from there")
    rig.connect()
    assert not rig.connected
    silent.take()
    assert silent.hung_up
    assert len(rig.engine.router.renewer.node._own) == 1
    rig.connector.refusal = None
    rig.launch.slow = False
    rig.go_on(1.0)
    assert sorted(rig.server.one("release_many").names) == sorted(names(FEW))


@pytest.mark.parametrize("very_much", [True, False], ids=["many acquires", "a release of many"])
def test_one_that_is_needed_is_dropped_if_it_has_very_much_to_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, very_much: bool
) -> None:
    monkeypatch.setattr(node, "MOST_SUSPECTED", FEW)
    leases = rig.hold_many(names(3), 300.0)
    if very_much:
        ask(rig, 3 * FEW)
    else:
        rig.release_many(leases)
    silent = rig.server
    rig.be_silent(5.1)
    rig.connector.refusal = TimeoutError("no answer from there")
    rig.connect()
    silent.take()
    assert silent.hung_up is very_much


def test_where_a_write_has_failed_anything_may_have_been_sent(failing: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    failing.hold("warm-up", 30.0)

    def fails(self: connection.PipelinedConnection) -> None:
        self._sock.send(b"".join(self._out.values()))
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(connection.PipelinedConnection, "_write", fails)
        attempt = failing.acquire("a", 30.0)
    assert attempt.request.execution is LATEST
    failing.post(attempt.request.give_up)
    failing.go_on(1.0)
    arrived = [command for command in failing.server.take() if "a" in command.names]
    assert [command.what for command in arrived] == ["release_many"]
