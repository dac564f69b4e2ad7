"""pottery: its Redlock on a single master, which its user extends."""

from __future__ import annotations

import sys
from typing import Any

import redis
import redis.asyncio
from pottery import AIORedlock, ExtendUnlockedLock, QuorumIsImpossible, Redlock, ReleaseUnlockedLock

from bench.rivals.implementation import AsyncLock, Lock
from bench.rivals.one_by_one import OneByOne
from bench.rivals.redis_py_each import MOST_CONNECTIONS


class Pottery(OneByOne):
    """A loop that calls ``extend()``; each call of pottery starts a thread for each master."""

    name = "pottery"
    most_held = 10_000  # the threads that it starts make a renewal twice as slow as redis-py's own
    gone = (ExtendUnlockedLock, ReleaseUnlockedLock)
    unknown = QuorumIsImpossible

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        # redis-py's default of 100 connections is too few for more callers than that at the same time.
        self._client = redis.Redis.from_url(url, max_connections=MOST_CONNECTIONS)
        self._tasks_client = redis.asyncio.Redis.from_url(url, max_connections=MOST_CONNECTIONS)

    def _settings(self) -> dict[str, Any]:
        return {
            "auto_release_time": self.timeout_s,
            "num_extensions": sys.maxsize,  # the default, 3, is reached after as many thirds of the timeout
            "raise_on_redis_errors": True,  # else a server that does not answer looks like a lock that is lost
        }

    def lock(self, name: str) -> Lock:
        lock: Lock = Redlock(key=name, masters={self._client}, **self._settings())
        return lock

    def async_lock(self, name: str) -> AsyncLock:
        lock: AsyncLock = AIORedlock(key=name, masters={self._tasks_client}, **self._settings())
        return lock

    def renew(self, lock: Any) -> None:
        lock.extend()

    def close(self) -> None:
        self._client.close()
