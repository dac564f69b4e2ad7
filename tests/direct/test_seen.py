"""What is seen of locks on the direct path is true, also after their server has changed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.direct.opened import on_path, opened, path_of, taken_over
from tests.support.backend import LONG_S, Backend, Losses
from tests.support.background import Background
from tests.support.timers import ask
from tests.support.waiting import eventually
from wheel_lock import LockContext, LossReason
from wheel_lock.engine.direct.connection import DirectConnection
from wheel_lock.lease import Lease
from wheel_lock.locks import operations

NAME = "order:42"
TIMEOUT_S = 120.0  # so that no renewal is due


def kill_the_engines_connections(context: LockContext, real: Backend) -> None:
    direct = path_of(context)
    assert direct._connection is not None
    mine = "{}:{}".format(*direct._connection._sock.getsockname())
    for client in real.view.client_list():
        if client["addr"] != mine and "wheel_lock" in client["name"]:
            real.view.client_kill(client["addr"])


def test_the_last_confirmation_is_recent_while_only_the_path_is_used(context: LockContext) -> None:
    direct = path_of(context)
    confirmed_at = direct._renewer.confirmed_at
    uses = direct.uses

    def confirmed() -> bool:
        with context.lock(NAME):
            pass
        return direct._renewer.confirmed_at > confirmed_at

    eventually(confirmed, LONG_S, "the health report is younger than the first lock")
    assert direct.uses > uses
    age_s = context.health().last_confirmation_age_s
    assert age_s is not None
    assert age_s <= context.timer.clock.now() - confirmed_at


@pytest.mark.usefixtures("unwatched")
def test_a_lock_is_listed_once_while_it_is_taken_over(context: LockContext, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = path_of(context)

    def taken_over_behind_the_look() -> Sequence[Lease]:
        found = young()
        taken_over(context)
        return found

    with context.lock(NAME) as lock:
        assert on_path(lock)
        young = direct.young
        monkeypatch.setattr(direct, "young", taken_over_behind_the_look)
        assert [held.name for held in context.held()] == [NAME]


def test_a_lock_on_the_path_whose_server_has_forgotten_it_while_the_engine_reconnects(
    context: LockContext, real: Backend
) -> None:
    lock = context.lock(NAME, TIMEOUT_S)
    lock.acquire()
    real.view.delete(NAME)
    kill_the_engines_connections(context, real)
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S, "the loss is found long before a renewal is due")


@pytest.mark.usefixtures("unwatched")
def test_a_lock_on_the_path_is_verified_although_the_engine_has_reconnected_before(
    context: LockContext, real: Backend
) -> None:
    with context.lock("held by the engine", TIMEOUT_S):
        taken_over(context)
        direct = opened(context)
        lock, kept = context.lock(NAME, TIMEOUT_S), context.lock("kept", TIMEOUT_S)
        before = direct._node.pipeline
        for one in (lock, kept):
            one.acquire()
            assert on_path(one)
            if one is lock:
                real.view.delete(NAME)
            kill_the_engines_connections(context, real)
            eventually(lambda: direct._node.ready and direct._node.pipeline is not before, LONG_S, "reconnected")  # noqa: B023
            ask(context.timer)
            assert on_path(one)
            assert one.is_held
            before = direct._node.pipeline
            taken_over(context)
            if one is lock:
                eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S, "the loss is found at once")
                opened(context)
        eventually(lambda: kept.renewals == 1, LONG_S, "it is verified")
        assert kept.is_held
        kept.release()


@pytest.mark.usefixtures("unwatched")
def test_a_forced_release_ends_a_lock_that_is_granted_on_the_path_meanwhile(
    context: LockContext, real: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = context.lock(NAME, TIMEOUT_S)
    seen, over = threading.Event(), threading.Event()
    ask_server, check_readable = DirectConnection.ask, operations._check_readable

    def read_late(connection: DirectConnection, request: bytes, until: float) -> Any:
        reply = ask_server(connection, request, until)
        assert seen.wait(LONG_S)
        return reply

    def acquire() -> None:
        lock.acquire()
        assert over.wait(LONG_S)

    def after_the_look(*arguments: Any) -> None:
        check_readable(*arguments)
        seen.set()
        eventually(lambda: lock.is_held, LONG_S, "the reply is read behind the look")

    monkeypatch.setattr(DirectConnection, "ask", read_late)
    monkeypatch.setattr(operations, "_check_readable", after_the_look)
    holder = Background(acquire)
    eventually(lambda: real.view.exists(NAME), LONG_S, "the server has granted it")
    assert len(context.force_release(NAME)) == 1
    assert lock.lost is LossReason.KEY_GONE
    over.set()
    holder.result()


def test_a_forced_release_ends_a_lock_whose_caller_reads_its_grant_behind_it(
    context: LockContext, real: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = Losses()
    lock = context.lock(NAME, TIMEOUT_S, on_lost=losses)
    removed, over = threading.Event(), threading.Event()
    ask_server = DirectConnection.ask

    def read_late(connection: DirectConnection, request: bytes, until: float) -> Any:
        reply = ask_server(connection, request, until)
        assert removed.wait(LONG_S)
        return reply

    def acquire() -> tuple[bool, bool, LossReason | None]:
        monkeypatch.setattr(DirectConnection, "ask", read_late)
        acquired = lock.acquire()
        monkeypatch.setattr(DirectConnection, "ask", ask_server)
        seen = acquired, lock.is_held, lock.lost
        assert over.wait(LONG_S)
        return seen

    holder = Background(acquire)
    eventually(lambda: real.view.exists(NAME), LONG_S, "the server has granted it")
    assert len(context.force_release(NAME)) == 1
    removed.set()
    eventually(losses.all_told, LONG_S)
    assert [event.reason for event in losses.events] == [LossReason.KEY_GONE]
    over.set()
    assert holder.result() == (True, False, LossReason.KEY_GONE)
    stats = context.stats()
    assert (stats.held, stats.lost) == (0, 1)
