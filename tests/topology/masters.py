"""Five masters that do not know of each other, to break one by one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

import redis

from tests.support.redis_server import RedisServer
from wheel_lock import LockContext
from wheel_lock.quorum.context import QuorumContext

LONG_S = 10.0
"""A bound that only a bug or a hopelessly busy machine exceeds."""


class Masters:
    """Five redis-server processes and the contexts on them, closed with it."""

    def __init__(self) -> None:
        self._cleanup = ExitStack()
        self.servers = [RedisServer() for _ in range(5)]

    def __enter__(self) -> Self:
        for server in self.servers:
            self._cleanup.enter_context(server)
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    def heal(self) -> None:
        """Have all of them run, with nothing on them."""
        for server in self.servers:
            if server.alive:
                server.resume()
            else:
                server.start()
            with redis.Redis(port=server.port) as client:
                client.flushall()

    def context(self, **options: Any) -> QuorumContext:
        return LockContext.quorum([redis.Redis(port=server.port) for server in self.servers], **options)

    def holders(self, name: str) -> list[bytes | None]:
        """What each of those that run knows of a lock."""
        found = []
        for server in self.servers:
            if server.alive:
                with redis.Redis(port=server.port, socket_timeout=2.0) as client:
                    found.append(client.get(name))
        return found

    def count(self, name: str) -> int:
        return sum(value is not None for value in self.holders(name))
