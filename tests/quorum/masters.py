"""Five masters that do not know of each other, to break one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import redis

from tests.support.backend import Clock
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.quorum.context import QuorumContext, QuorumLock
from wheel_lock.quorum.lease import QuorumLease

LONG_S = 30.0
"""A bound that only a bug or a hopelessly busy machine exceeds."""
UNHURRIED_S = 1.0
"""What a master may take to answer an acquire where a test is about something else, however short the lock's timeout."""


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
            server.heal()
            server.admin.flushall()

    def context(self, **options: Any) -> QuorumContext:
        return LockContext.quorum([redis.Redis(port=server.port) for server in self.servers], **options)

    @contextmanager
    def connected(self, **options: Any) -> Iterator[QuorumContext]:
        """A context that has a connection to each of them, so no time limit of a test counts for connecting."""
        with self.context(**options) as context:
            connect(context)
            yield context

    @contextmanager
    def stepped(self, **options: Any) -> Iterator[tuple[QuorumContext, Clock]]:
        """The same, living by a clock that is moved by hand. Keys on the servers still expire in real time."""
        clock = Clock()
        timer = HashedWheelTimer(clock=clock)
        with self.connected(timer=timer, **options) as context:
            try:
                yield context, clock
            finally:
                timer.stop()  # first: a time limit of close() would never be over

    def holders(self, name: str) -> list[bytes | None]:
        """What each of those that run knows of a lock."""
        clients: list[Any] = [server.admin for server in self.servers if server.alive]
        return [client.get(name) for client in clients]

    def delete(self, name: str) -> bool:
        """Delete a key from three of them. (A renewal in between may put it back to the first: do it again then.)"""
        for server in self.servers[:3]:
            server.admin.delete(name)
        return True

    def count(self, name: str) -> int:
        return sum(value is not None for value in self.holders(name))


def connect(context: QuorumContext) -> None:
    """Have a context connected to each of its masters, all of which run. Nothing but its connections is counted by that."""
    engines = context._engine.engines

    def done() -> bool:
        for engine in engines:
            engine.timer.post(engine.router.renewer.node.connect)
        return all(engine.router.renewer.node.ready for engine in engines)

    eventually(done, LONG_S, "a connection to each master", interval_s=0.01)


def held_by(lock: QuorumLock) -> QuorumLease:
    lease = lock._lease
    assert isinstance(lease, QuorumLease)
    return lease
