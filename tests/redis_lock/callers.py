"""What the tests of redis_lock share: threads and tasks that use locks of its classes through a client of their kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from tests.support.backend import Backend
from tests.support.callers import Caller, Driven, NewCaller
from wheel_lock import LockContext
from wheel_lock.redis_lock import AsyncLock, Lock

NAME = "order:42"
SLEEP_S = 0.2
"""The polling interval of waiters that are not woken. The default is five seconds."""


def ours(client: redis.Redis | redis.asyncio.Redis, **options: Any) -> Any:
    """A lock as a user makes it: the class goes through the client's own method."""
    options.setdefault("lock_class", Lock if isinstance(client, redis.Redis) else AsyncLock)
    return plain(client, **options)


def plain(client: redis.Redis | redis.asyncio.Redis, **options: Any) -> Any:
    """redis-py's own lock."""
    return client.lock(options.pop("name", NAME), **options)


def with_token(lock: Any, token: Any) -> Any:
    lock.local.token = token
    return lock


class DrivenLock(Driven):
    """A lock as one caller sees it, with the token that redis-py keeps for that caller."""

    @property
    def token(self) -> Any:
        return self._caller.do(lambda: self._target.local.token)

    def with_token(self, token: Any) -> DrivenLock:
        self._caller.do(lambda: with_token(self._target, token))
        return self


class Party:
    """A thread or a task with a client of its kind."""

    def __init__(self, client: redis.Redis | redis.asyncio.Redis, new_caller: NewCaller) -> None:
        self.client = client
        self.context = LockContext.shared(client)
        self._new_caller = new_caller
        self._caller: Caller = new_caller(self.context)

    def ours(self, **options: Any) -> DrivenLock:
        return DrivenLock(self._caller, self._caller.do(lambda: ours(self.client, **options)))

    def plain(self, **options: Any) -> DrivenLock:
        return DrivenLock(self._caller, self._caller.do(lambda: plain(self.client, **options)))

    def another(self) -> Party:
        """Another thread or task with the same client."""
        return Party(self.client, self._new_caller)

    def sees(self, lock: DrivenLock) -> DrivenLock:
        """A lock that another uses, as this one sees it."""
        return DrivenLock(self._caller, lock._target)

    def end(self) -> None:
        self._caller.end()

    def close(self) -> None:
        self.context.close()
        self._caller.do(self.client.close if isinstance(self.client, redis.Redis) else self.client.aclose)


@asynccontextmanager
async def client_of(backend: Backend, **options: Any) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis(host="127.0.0.1", port=backend.port, password=backend.password, **options)
    try:
        yield client
    finally:
        await LockContext.shared(client).asyncio.close()
        await client.aclose()
