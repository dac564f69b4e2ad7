"""What the direct path reports, and leaves behind, where its connection or its context has ended."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.direct.opened import on_path, opened, path_of
from tests.support.backend import LONG_S, Backend
from tests.support.background import Background
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, LockContext, LockLost, LossReason
from wheel_lock.engine import shutdown

NAME = "order:42"


def end_connection(context: LockContext, real: Backend) -> None:
    """Have the server close the path's connection, and wait until that can be seen."""
    connection = path_of(context)._connection
    assert connection is not None
    sock: Any = connection._sock
    host, port = sock.getsockname()
    real.view.client_kill(f"{host}:{port}")
    eventually(lambda: connection._poll(0), LONG_S)


@pytest.mark.usefixtures("unwatched")
def test_a_release_that_was_never_sent_reports_that_the_lock_was_gone(context: LockContext, real: Backend) -> None:
    lock = context.lock(NAME)
    assert lock.acquire()
    assert on_path(lock)
    end_connection(context, real)
    real.view.delete(NAME)
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason is LossReason.KEY_GONE


def test_an_acquire_on_a_connection_that_has_ended_is_the_engines_first_try(
    context: LockContext, real: Backend
) -> None:
    end_connection(context, real)
    calls = real.view.info("commandstats")
    before = calls["cmdstat_set"]["calls"]
    with context.lock(NAME) as lock:
        assert real.view.exists(NAME)
        assert not on_path(lock)
    assert real.view.info("commandstats")["cmdstat_set"]["calls"] == before + 1


def test_a_close_waits_for_the_caller_whose_reply_is_on_its_way(
    real: Backend, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "_CALLER_S", LONG_S)
    context = real.context_through(proxy, timer=real.timer(), response_timeout=100.0)
    direct = opened(context)
    lock = context.lock(NAME, timeout=60.0)
    proxy.to_client.delay_s = math.inf
    acquired = Background(lock.acquire)
    eventually(lambda: real.view.exists(NAME), LONG_S)
    assert direct.claim
    closed = Background(lambda: context.close(timeout=LONG_S))
    eventually(lambda: context._engine.over, LONG_S)
    proxy.to_client.delay_s = 0.0
    closed.result()
    assert not real.view.exists(NAME)
    with pytest.raises(ContextClosed):
        acquired.result()
