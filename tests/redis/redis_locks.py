"""What the tests of redis_lock share: locks of its classes, and event loops to play a scene in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from tests.redis.support import LONG_S, Backend
from wheel_lock import LockContext
from wheel_lock.redis_lock import AsyncLock, Lock

NAME = "order:42"
SLEEP_S = 0.2
"""How often those look who are woken by nobody. A context that is not told so looks every five seconds."""
Scene = Callable[[redis.asyncio.Redis], Coroutine[Any, Any, None]]


def ours(client: redis.Redis | redis.asyncio.Redis, **options: Any) -> Any:
    """A lock as a user makes it: the class goes through the client's own method."""
    options.setdefault("lock_class", Lock if isinstance(client, redis.Redis) else AsyncLock)
    return client.lock(options.pop("name", NAME), **options)


def plain(client: redis.Redis | redis.asyncio.Redis, **options: Any) -> Any:
    """redis-py's own lock."""
    return client.lock(options.pop("name", NAME), **options)


def with_token(lock: Any, token: Any) -> Any:
    lock.local.token = token
    return lock


@asynccontextmanager
async def client_of(backend: Backend, **options: Any) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis(host="127.0.0.1", port=backend.port, password=backend.password, **options)
    try:
        yield client
    finally:
        await LockContext.shared(client).asyncio.close()
        await client.aclose()


def play(backend: Backend, scene: Scene, **options: Any) -> None:
    """Run a scene in an event loop of its own, with a client of its own."""

    async def main() -> None:
        async with client_of(backend, **options) as client:
            await scene(client)

    asyncio.run(main())


async def soon(what: Callable[[], object]) -> None:
    """Return when something has become true, and let the event loop run meanwhile."""
    async with asyncio.timeout(LONG_S):
        while not what():
            await asyncio.sleep(0.01)


async def hand_over_s(waiting: asyncio.Task[Any], release: Callable[[], Awaitable[Any]]) -> float:
    """Seconds from a release until a waiter has the lock."""
    await asyncio.sleep(0.1)
    assert not waiting.done()
    began = time.monotonic()
    await release()
    assert await waiting
    return time.monotonic() - began
