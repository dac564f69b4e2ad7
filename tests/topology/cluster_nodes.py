"""A cluster of real redis-server processes on loopback: three masters, each with a replica or none."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

import redis

from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock.protocol.keys import SLOTS

MASTERS = 3
CLIENTS: list[dict[str, Any]] = [
    {"protocol": 2},
    {"protocol": 3},
    {"decode_responses": True},
    {"health_check_interval": 1},
]
"""Settings of clients that the locks have to get along with."""
LONG_S = 20.0


class Nodes:
    """A cluster. Use it in a ``with``.

    Args:
        replicas: How many replicas each master has.
        node_timeout_ms: After how much silence the nodes take one to be down.

    Attributes:
        node_timeout_ms: The same, also after a change; but one that was restarted has what it began with.
    """

    def __init__(self, replicas: int = 0, *, node_timeout_ms: int = 1000) -> None:
        self._replicas = replicas
        self.node_timeout_ms = node_timeout_ms
        self._stack = ExitStack()
        self.servers: list[RedisServer] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            lines = [
                "cluster-enabled yes",
                "repl-diskless-sync-delay 0",
                f"cluster-node-timeout {self.node_timeout_ms}",
                "cluster-replica-validity-factor 0",
                "cluster-require-full-coverage no",
            ]
            self.servers = [stack.enter_context(RedisServer(*lines)) for _ in range(MASTERS * (1 + self._replicas))]
            for number, server in enumerate(self.servers):
                server.admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                for other in self.servers[:number]:  # each other, or they would hear of each other a second later
                    server.admin.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
            for number, server in enumerate(self.masters):
                start, end = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS - 1
                server.admin.execute_command("CLUSTER", "ADDSLOTS", *range(start, end + 1))
            for server in self.servers:
                eventually(lambda: self.info(server)["cluster_known_nodes"] == len(self.servers), LONG_S)  # noqa: B023
            for number, server in enumerate(self.servers[MASTERS:]):
                master = self.servers[number % MASTERS]
                eventually(lambda: self._follow(server, master), LONG_S)  # noqa: B023
            for server in self.servers:  # its state is "ok" before, without full coverage
                eventually(lambda: self._knows_all_slots(server), LONG_S)  # noqa: B023
            for server in self.servers[MASTERS:]:
                eventually(lambda: server.admin.info("replication")["master_link_status"] == "up", LONG_S)  # noqa: B023
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _knows_all_slots(self, server: RedisServer) -> bool:
        info = self.info(server)
        return bool(info["cluster_state"] == "ok" and info["cluster_slots_ok"] == SLOTS)

    def _follow(self, replica: RedisServer, master: RedisServer) -> bool:
        try:
            replica.admin.execute_command("CLUSTER", "REPLICATE", self.id_of(master))
        except redis.ResponseError:
            return False  # it has not heard of its master yet
        return True

    @property
    def masters(self) -> list[RedisServer]:
        """Those that were masters at first."""
        return self.servers[:MASTERS]

    def info(self, server: RedisServer) -> dict[str, Any]:
        text = server.admin.execute_command("CLUSTER", "INFO")
        pairs = [line.split(":") for line in text.decode().split()]
        return {key: int(value) if value.isdigit() else value for key, value in pairs}

    def id_of(self, server: RedisServer) -> str:
        """The id that the others know a node by."""
        return str(server.admin.execute_command("CLUSTER", "MYID").decode())

    def client(self, **settings: Any) -> redis.RedisCluster:
        """A client, as a user has it; closed with the cluster, because one that is only dropped warns of its sockets."""
        client = redis.RedisCluster(host="127.0.0.1", port=self.servers[0].port, **settings)
        self._stack.callback(client.close)
        return client

    def move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move one slot and what is in it, as redis-cli does."""
        self.begin_move(slot, source, target)
        self.move_keys(slot, source, target)
        self.end_move(slot, target)

    def begin_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Have both sides know that a slot is on its way."""
        target.admin.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.admin.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        client = source.admin
        while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, target: RedisServer) -> None:
        """Have all masters know where the slot is."""
        new = self.id_of(target)
        for server in [target, *self.masters]:
            if server.alive:
                server.admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new)
