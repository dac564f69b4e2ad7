"""Servers that are away: a caller's time limit bounds the whole call, and the log and the errors say what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.support.backend import LONG_S
from tests.support.background import EVENTUALLY_S, Background
from tests.support.logged import Log
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockTimeout, LockUnavailable
from wheel_lock.redis_lock import AsyncLock, Lock

pytestmark = pytest.mark.slow

LIMIT_S = 0.3
RESPONSE_S = 60.0
"""What a call would take that does not heed its caller's limit."""


def within_limit(call: Callable[[], object]) -> None:
    """Call, and see it fail because servers are away, when its time is up."""
    began = time.monotonic()
    with pytest.raises((LockTimeout, LockUnavailable, redis.ConnectionError, redis.TimeoutError)):
        call()
    assert LIMIT_S - 0.01 <= time.monotonic() - began < LONG_S


def in_a_task(make_call: Callable[[], Awaitable[Any]]) -> Callable[[], object]:
    """What makes the call in a task of an event loop of its own."""

    async def main() -> object:
        return await make_call()

    return lambda: asyncio.run(main())


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_calls_end_in_time(fresh_redis: RedisServer, how: str) -> None:
    client = redis.Redis(port=fresh_redis.port)
    assert client.lock("warm-up too", lock_class=Lock).acquire()

    async def asked() -> None:
        client = redis.asyncio.Redis(port=fresh_redis.port)
        try:
            await client.lock("order:42", timeout=30, lock_class=AsyncLock).acquire(blocking_timeout=LIMIT_S)
        finally:
            LockContext.shared(client).close()
            await client.aclose()

    with LockContext(client, response_timeout=RESPONSE_S, close_timeout=0.2) as context:
        with context.lock("warm-up"):
            pass
        if how == "killed":
            fresh_redis.kill()
        else:
            fresh_redis.pause()
        calls: list[Callable[[], object]] = [
            lambda: context.lock("order:42").acquire(blocking_timeout=LIMIT_S),
            context.multi_lock(["order:42", "order:43"], blocking_timeout=LIMIT_S).__enter__,
            in_a_task(lambda: context.asyncio.lock("order:42").acquire(blocking_timeout=LIMIT_S)),
            in_a_task(lambda: context.asyncio.rw_lock("t", blocking_timeout=LIMIT_S).write().__aenter__()),
            lambda: client.lock("order:42", timeout=30, lock_class=Lock).acquire(blocking_timeout=LIMIT_S),
            lambda: client.lock("order:42", sleep=5, lock_class=Lock).acquire(blocking_timeout=LIMIT_S),
            in_a_task(asked),
        ]
        for call in [Background(lambda call=call: within_limit(call)) for call in calls]:  # type: ignore[misc]
            call.result()
        assert context.stats().waiting == 0
        assert context._engine.leases.acquiring == 0
        if how == "paused":
            fresh_redis.resume()  # or closing would take its time
    LockContext.shared(client).close()


# What users read while a server is away, refuses, or does not speak the client's language


NAMES = ["order:42", "order:43"]


def test_a_server_that_speaks_no_tls_any_more(tls_redis: RedisServer, log: Log) -> None:
    with TcpProxy(tls_redis.tls_port) as proxy:
        client = redis.Redis(port=proxy.port, ssl=True, ssl_ca_certs=str(tls_redis.tls.ca))
        with LockContext(client, connect_timeout=0.3, close_timeout=0.2) as context:
            locks = context.acquire_many(NAMES, timeout=60.0)
            proxy.lead_to(tls_redis.port)
            proxy.cut()
            eventually(lambda: log.said("unreachable"), EVENTUALLY_S)
            (warning,) = log.said("unreachable")
            assert "the client speaks TLS (rediss://), and the server does not at this port" in warning
            proxy.lead_to(tls_redis.tls_port)
            eventually(lambda: log.said("well again"), EVENTUALLY_S)
            assert all(lock is not None and lock.is_held for lock in locks.values())


@pytest.mark.parametrize(
    ("client_speaks", "server_speaks", "said"),
    [
        (True, False, "the client speaks TLS"),
        (False, True, "the server speaks TLS"),
        (True, True, "CERTIFICATE_VERIFY_FAILED"),  # which does not depend on the port
    ],
)
def test_a_port_that_speaks_another_language(
    tls_redis: RedisServer, client_speaks: bool, server_speaks: bool, said: str
) -> None:
    trusted = {} if server_speaks else {"ssl_ca_certs": str(tls_redis.tls.ca)}
    port = tls_redis.tls_port if server_speaks else tls_redis.port
    client = redis.Redis(port=port, **({"ssl": True, **trusted} if client_speaks else {}))  # type: ignore[arg-type]
    with LockContext(client, connect_timeout=0.5) as context, pytest.raises(LockUnavailable, match=said) as caught:
        context.lock("order:42").acquire(blocking_timeout=2.0)
    assert ("does not at this port" in str(caught.value)) is (not server_speaks)
