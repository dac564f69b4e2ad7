"""A Redis cluster as redis-py knows it: its nodes, and which of them owns which hash slots.

The slot map is asked for on a short-lived helper thread, of one node after the other, with our time limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import redis
import redis.asyncio

from wheel_lock.engine.connect import InTurn, RedisPyConnector, Server

AnyCluster = redis.RedisCluster | redis.asyncio.RedisCluster


class SlotRange(NamedTuple):
    """Slots that one master owns, the last one included."""

    first: int
    last: int
    server: Server


class ClusterConnector:
    """Makes what connects to the nodes of one cluster.

    Args:
        client: Whose settings hold for every node.

    Attributes:
        servers: Its masters as far as they are known; at first the nodes that the client was given.
    """

    def __init__(self, client: AnyCluster) -> None:
        self.servers: list[Server] = [
            (str(node.host), str(node.port)) for node in client.nodes_manager.startup_nodes.values()
        ]
        self._remap = getattr(client.nodes_manager, "address_remap", None)
        self._template = RedisPyConnector(_client_of_a_node(client))

    def place(self, host: str, port: str) -> Server:
        """Return where a node is reached which the cluster names so: the client may say that it is elsewhere."""
        if self._remap is not None:
            host, port = self._remap((host, int(port)))
        return host, str(port)

    def to(self, server: Server) -> RedisPyConnector:
        """Return what connects to one node."""
        return self._template.at(server)

    def listener(self) -> InTurn:
        """Return what connects to one master after the other, to listen: what one publishes, all pass on."""
        return InTurn(lambda: [self.to(server).listener() for server in self.servers])

    def describe(self) -> str:
        """Return where the cluster is, without credentials."""
        return f"the cluster at {':'.join(map(str, self.servers[0]))}"

    def ask(self, timeout_s: float) -> list[SlotRange]:
        """Return who owns which slots, nothing where no node tells; blocks."""
        for server in self.servers:
            client = self.to(server).client(timeout_s / len(self.servers))
            client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
            try:
                found = list(self._read(client.execute_command("CLUSTER SLOTS"), server))
            except Exception:  # a credential provider's, perhaps: the next node may do better
                continue
            finally:
                client.close()
            if found:
                return found
        return []

    def _read(self, reply: Any, asked: Server) -> Iterable[SlotRange]:
        for first, last, master, *_ in reply:
            host, port = master[0], master[1]
            # A node that does not know its own address leaves it out.
            name = asked[0] if not host or host == b"?" else host.decode()
            yield SlotRange(int(first), int(last), self.place(name or "", str(port)))


def _client_of_a_node(client: AnyCluster) -> redis.Redis | redis.asyncio.Redis:
    """Return a client for one node, whichever: its settings are those of all."""
    if isinstance(client, redis.RedisCluster):
        node = client.get_default_node()
        own: redis.Redis = node.redis_connection
        return own
    first = next(iter(client.nodes_manager.startup_nodes.values()))
    pool = redis.asyncio.ConnectionPool(connection_class=first.connection_class, **first.connection_kwargs)
    return redis.asyncio.Redis(connection_pool=pool)
