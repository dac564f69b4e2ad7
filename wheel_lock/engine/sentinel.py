"""Masters that Sentinels name: who it is now is asked of them each time a connection is made.

redis-py's own Sentinel does the asking, on the short-lived helper thread that connects; its clients are made anew with
our time limits, so that one Sentinel that is silent does not keep the others from being asked.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import redis.sentinel
from redis.connection import AbstractConnection

from wheel_lock.engine.connect import InTurn, RedisPyConnection, RedisPyConnector

_SECURE = (redis.SSLConnection, redis.asyncio.SSLConnection)


class SentinelConnector(RedisPyConnector):
    """Connects to whichever server is the master of a service.

    Raises:
        TypeError: The client is one for replicas.
    """

    discovers = True

    def __init__(self, client: redis.Redis | redis.asyncio.Redis) -> None:
        super().__init__(client)
        pool: Any = client.connection_pool
        if not pool.is_master:
            raise TypeError("locks are held at a master: take the client from Sentinel.master_for, not from slave_for")
        manager = pool.sentinel_manager
        self.service: str = pool.service_name
        self._sentinels = [RedisPyConnector(sentinel) for sentinel in manager.sentinels]
        self._min_other_sentinels = manager.min_other_sentinels
        self._force_master_ip = manager._force_master_ip

    def _made_of(self, connection_class: type[Any], settings: dict[str, Any]) -> type[Any]:
        # Those of the pool ask the Sentinels themselves; here that has been done before a connection is made.
        del settings["connection_pool"]
        settings.pop("connection_class", None)
        return redis.SSLConnection if issubclass(connection_class, _SECURE) else redis.Connection

    def describe(self) -> str:
        """Return the service, and its master as far as it is known."""
        return (
            f"the master of {self.service!r} ({self._settings.get('host', 'not known')}:{self._settings.get('port')})"
        )

    def connect(self, timeout_s: float) -> RedisPyConnection:
        """Ask the Sentinels, and connect to the master they name.

        Raises:
            redis.exceptions.RedisError, OSError: It did not work, or that server is no master (any more).
        """
        self._settings["host"], self._settings["port"] = self.ask(timeout_s)
        return super().connect(timeout_s)

    def ask(self, timeout_s: float) -> tuple[str, int]:
        """Return host and port of the master as the Sentinels name it; blocks.

        Raises:
            redis.exceptions.ConnectionError: None of them knows.
        """
        asking = redis.sentinel.Sentinel(
            [], min_other_sentinels=self._min_other_sentinels, force_master_ip=self._force_master_ip
        )
        limit_s = timeout_s / max(len(self._sentinels), 1)
        asking.sentinels = [sentinel.client(limit_s) for sentinel in self._sentinels]
        with asking:
            host, port = asking.discover_master(self.service)
        return host, int(port)

    def _check(self, connection: AbstractConnection) -> None:
        # A Sentinel that has just come back may name the master of yesterday.
        connection.send_command("ROLE")
        try:
            role = connection.read_response()
        except redis.exceptions.NoPermissionError:
            return  # +role is missing: then the first write tells
        if role[0] != b"master":
            raise redis.exceptions.ConnectionError(f"{self.describe()} is no master (any more)")

    def watcher(self) -> InTurn:
        """Return what connects to one Sentinel after the other, to listen."""
        listeners = [sentinel.listener() for sentinel in self._sentinels]
        return InTurn(lambda: listeners)
