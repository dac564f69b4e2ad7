"""A caller's time limit bounds the whole call when the server is away: every kind of lock, for threads and for tasks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.faults.support import Pulse, now
from tests.support.backend import LONG_S
from tests.support.background import Background
from tests.support.lock_types import KINDS, make
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
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


@pytest.mark.parametrize(("kind", "how"), [*zip(KINDS, itertools.cycle(WAYS), strict=False)])
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


@pytest.mark.parametrize(("kind", "how"), [*zip(KINDS, itertools.cycle(WAYS[::-1]), strict=False)])
def test_a_wait_ends_in_time(context: LockContext, fresh_redis: RedisServer, how: str, kind: str) -> None:
    with LockContext(redis.Redis(port=fresh_redis.port), close_timeout=0.2) as other:
        holder = make(other, kind if kind != "read" else "write", timeout=60.0)
        assert holder.acquire()
        patient = Background(make(context, kind).acquire)
        waiters = [Background(lambda: make(context, kind).acquire(blocking_timeout=0.8)) for _ in range(4)]
        eventually(lambda: context.stats().waiting == 5)
        take_away(fresh_redis, how)
        for waiter in waiters:
            with pytest.raises(AWAY):
                waiter.result()
        assert not patient.done
        if how == "paused":
            fresh_redis.resume()
            holder.release()
            assert patient.result()


@away
def test_many_at_once(context: LockContext, fresh_redis: RedisServer, how: str) -> None:
    names = [f"order:{number}" for number in range(3000)]

    take_away(fresh_redis, how)
    within_limit(
        lambda: context.acquire_many(names, blocking_timeout=LIMIT_S),
        in_a_task(lambda: context.asyncio.acquire_many(names, blocking_timeout=LIMIT_S, all_or_nothing=True)),
    )
    assert context.stats().held == 0
    assert context._engine.leases.acquiring == 0


def test_a_server_of_which_nothing_was_ever_heard(fresh_redis: RedisServer) -> None:
    fresh_redis.pause()
    with LockContext(redis.Redis(port=fresh_redis.port), response_timeout=RESPONSE_S, close_timeout=0.2) as context:
        within_limit(lambda: context.lock("order:42").acquire(blocking_timeout=LIMIT_S))


@pytest.mark.parametrize("limit_s", [0, 0.001])
def test_the_smallest_limits_are_enough_for_a_server_that_is_well(
    context: LockContext, pulse: Pulse, limit_s: float
) -> None:
    def acquired(name: str) -> bool:
        while True:
            began = now()
            try:
                return context.lock(name).acquire(blocking_timeout=limit_s)
            except LockTimeout:
                assert pulse.stood_s(began) > 0.0  # it had no time at all

    for number in range(100):
        assert acquired(f"order:{number}")
    assert not acquired("order:42")


def test_what_a_server_grants_too_late_is_released(context: LockContext, fresh_redis: RedisServer) -> None:
    fresh_redis.pause()
    within_limit(lambda: context.lock("order:42", timeout=60.0).acquire(blocking_timeout=LIMIT_S))
    fresh_redis.resume()
    assert context.lock("order:42").acquire(blocking_timeout=LONG_S)


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
