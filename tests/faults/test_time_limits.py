"""A caller's time limit bounds the whole call when the server is away: every kind of lock, for threads and for tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.support.backend import LONG_S
from tests.support.background import Background
from tests.support.lock_types import make
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext, LockTimeout, LockUnavailable
from wheel_lock.redis_lock import AsyncLock, Lock

pytestmark = pytest.mark.slow

LIMIT_S = 0.3
RESPONSE_S = 60.0
"""What a call would take that does not heed its caller's limit."""
AWAY = (LockTimeout, LockUnavailable)

WAYS = ["killed", "paused"]
away = pytest.mark.parametrize("how", WAYS)


@pytest.fixture
def context(fresh_redis: RedisServer) -> Iterator[LockContext]:
    """A context whose connection stands."""
    context = LockContext(redis.Redis(port=fresh_redis.port), response_timeout=RESPONSE_S, close_timeout=0.2)
    with context:
        with context.lock("warm-up"):
            pass
        yield context


def take_away(server: RedisServer, how: str) -> None:
    if how == "killed":
        server.kill()
    else:
        server.pause()


def within_limit(*calls: Callable[[], object]) -> None:
    """Call them side by side, and see each fail because the server is away, when its time is up."""
    began = time.monotonic()
    for call in [Background(call) for call in calls]:
        with pytest.raises((*AWAY, redis.ConnectionError, redis.TimeoutError)):
            call.result()
    assert LIMIT_S - 0.01 <= time.monotonic() - began < LONG_S


def in_a_task(make_call: Callable[[], Awaitable[Any]]) -> Callable[[], object]:
    """What makes the call in a task of an event loop of its own."""

    async def main() -> object:
        return await make_call()

    return lambda: asyncio.run(main())


@pytest.mark.parametrize(("kind", "how"), [("exclusive", "killed"), ("write", "paused"), ("multi", "paused")])
def test_an_acquire_ends_in_time(context: LockContext, fresh_redis: RedisServer, how: str, kind: str) -> None:
    take_away(fresh_redis, how)
    within_limit(
        lambda: make(context, kind).acquire(blocking_timeout=LIMIT_S),
        make(context, kind, blocking_timeout=LIMIT_S).__enter__,
        in_a_task(lambda: make(context.asyncio, kind).acquire(blocking_timeout=LIMIT_S)),
        in_a_task(lambda: make(context.asyncio, kind, blocking_timeout=LIMIT_S).__aenter__()),
    )
    assert context.stats().waiting == 0
    assert context._engine.leases.acquiring == 0


@away
def test_redis_pys_interface(context: LockContext, fresh_redis: RedisServer, how: str) -> None:
    client = redis.Redis(port=fresh_redis.port)
    assert client.lock("warm-up too", lock_class=Lock).acquire()

    async def asked() -> None:
        client = redis.asyncio.Redis(port=fresh_redis.port)
        try:
            await client.lock("order:42", timeout=30, lock_class=AsyncLock).acquire(blocking_timeout=LIMIT_S)
        finally:
            LockContext.shared(client).close()
            await client.aclose()

    take_away(fresh_redis, how)
    within_limit(
        lambda: client.lock("order:42", timeout=30, lock_class=Lock).acquire(blocking_timeout=LIMIT_S),
        lambda: client.lock("order:42", sleep=5, lock_class=Lock).acquire(blocking_timeout=LIMIT_S),
        in_a_task(asked),
    )
    if how == "paused":
        fresh_redis.resume()  # or closing would take its time
    LockContext.shared(client).close()
