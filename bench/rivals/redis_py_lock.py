"""redis-py's own Lock, and the least that can be written with redis-py: neither renews anything."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import redis
import redis.asyncio

from bench.rivals.implementation import AsyncLock, Implementation, Lock

# For each thread or task that is under way, and for each subscription. The default of 100 is an error for the next one;
# a pool that blocks instead is slower.
CONNECTIONS = 2_000


class RedisPyLock(Implementation):
    """``client.lock()``, which waits by asking every 100 ms."""

    name = "redis-py, Lock"
    modes: ClassVar[tuple[str, ...]] = ("pairs", "handover", "crowd")

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        self._client = redis.Redis.from_url(url, max_connections=CONNECTIONS)

    @cached_property
    def _async_client(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(self.url, max_connections=CONNECTIONS)

    def lock(self, name: str) -> Lock:
        lock: Lock = self._client.lock(name, timeout=self.timeout_s)
        return lock

    def async_lock(self, name: str) -> AsyncLock:
        lock: AsyncLock = self._async_client.lock(name, timeout=self.timeout_s)
        return lock

    def renew(self, lock: Any) -> None:
        assert lock.reacquire()

    def is_mine(self, lock: Any) -> bool:
        owned: bool = lock.owned()
        return owned

    def close(self) -> None:
        self._client.close()


class BareLock:
    """SET, and a script that deletes and publishes: no owner, no renewal, no time limit."""

    def __init__(self, client: redis.Redis, name: str, timeout_s: float) -> None:
        self._client = client
        self._name = name
        self._timeout_ms = round(timeout_s * 1000)
        self._release = client.register_script("redis.call('del', KEYS[1]) redis.call('publish', ARGV[1], '')")
        subscription = client.pubsub()
        subscription.subscribe(f"{name}:free")
        self._messages = subscription.listen()
        next(self._messages)  # subscribed

    def acquire(self) -> None:
        while not self._client.set(self._name, "token", nx=True, px=self._timeout_ms):
            next(self._messages)

    def release(self) -> None:
        self._release(keys=[self._name], args=[f"{self._name}:free"])


class BareMinimum(RedisPyLock):
    """The least that wakes another process when a lock is released."""

    name = "redis-py, bare minimum"
    modes = ("handover", "crowd")

    def lock(self, name: str) -> Lock:
        return BareLock(self._client, name, self.timeout_s)
