"""A master with replicas and the Sentinels that watch it, all real and on loopback."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Self

import redis
from redis.sentinel import Sentinel

from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

SERVICE = "locks"
FAILOVER_S = 30.0


def begin_failover(leader: RedisServer) -> None:
    """Have a Sentinel begin a failover, as soon as the last one is long enough ago and there is a good replica."""

    def begun() -> bool:
        try:
            leader.admin.sentinel_failover(SERVICE)
        except redis.ResponseError:
            return False
        return True

    eventually(begun, FAILOVER_S)


class Watched:
    """One master, some replicas, three Sentinels. Use it in a ``with``.

    Args:
        replicas: How many replicas.
        down_after_ms: After how much silence a Sentinel takes a server to be down.
        failover_timeout_ms: After how much time a failover ends whose replicas are not synchronised.
        one_choice: Whether only the first replica may be made the master.
    """

    def __init__(
        self, replicas: int = 1, *, down_after_ms: int = 1200, failover_timeout_ms: int = 3000, one_choice: bool = False
    ) -> None:
        self._replicas = replicas
        self._down_after_ms = down_after_ms
        self._failover_timeout_ms = failover_timeout_ms
        self._one_choice = one_choice
        self._stack = ExitStack()
        self.servers: list[RedisServer] = []
        self.sentinels: list[RedisServer] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            at_once = "repl-diskless-sync-delay 0"
            master = stack.enter_context(RedisServer(at_once))
            self.servers.append(master)
            for number in range(self._replicas):
                following = [f"replicaof 127.0.0.1 {master.port}", at_once]
                if self._one_choice and number:
                    following.append("replica-priority 0")
                replica = RedisServer(*following)
                self.servers.append(stack.enter_context(replica))
            eventually(lambda: master.admin.info("replication")["connected_slaves"] == self._replicas)
            watching = [
                f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 2",
                f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}",
                f"sentinel failover-timeout {SERVICE} {self._failover_timeout_ms}",
            ]
            for _ in range(3):
                sentinel = RedisServer(*watching, sentinel=True)
                self.sentinels.append(stack.enter_context(sentinel))
                with suppress(redis.ResponseError):  # it tells the others every 0.1 s, not every 2 s: Redis 7
                    sentinel.admin.execute_command("SENTINEL", "DEBUG", "publish-period", 100)
            for sentinel in self.sentinels:
                eventually(lambda: self._knows_all(sentinel), message="the Sentinels know each other")  # noqa: B023
            self._stack = stack.pop_all()
        return self

    def _knows_all(self, sentinel: RedisServer) -> bool:
        state: Any = sentinel.admin.execute_command("SENTINEL MASTER", SERVICE)
        return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] >= self._replicas)

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def sentinel(self, **settings: Any) -> Sentinel:
        """A Sentinel client, as a user has it."""
        addresses = [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]
        return Sentinel(addresses, sentinel_kwargs={"socket_timeout": 1.0}, **settings)

    def client(self) -> redis.Redis:
        """A client of whichever server is the master."""
        client: redis.Redis = self.sentinel().master_for(SERVICE)
        return client

    @property
    def master(self) -> RedisServer:
        """The server that the Sentinels name; waited for while they are of two minds."""
        port = eventually(self._named, FAILOVER_S, message="a master that the Sentinels name")
        return next(server for server in self.servers if server.port == port)

    @property
    def replica(self) -> RedisServer:
        master = self.master
        return next(server for server in self.servers if server is not master)

    def replicated(self) -> bool:
        """Whether the first replica knows what the first master knows."""
        master, replica, *_ = self.servers
        return bool(replica.client().dbsize() == master.client().dbsize())

    def fail_over(self) -> None:
        """Have another server made the master while the old one lives; return when the Sentinels name it."""
        old = self.master
        begin_failover(self.sentinels[0])
        self.wait_for_another(old)

    def wait_for_another(self, old: RedisServer) -> None:
        eventually(lambda: self._named() not in (None, old.port), FAILOVER_S, message="failover")

    def _named(self) -> int | None:
        try:
            return int(self.sentinel().discover_master(SERVICE)[1])
        except redis.ConnectionError:
            return None
