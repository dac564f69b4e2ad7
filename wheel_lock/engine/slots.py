"""A Redis cluster as redis-py knows it: its nodes, and which of them owns which hash slots.

The slot map is asked for on a short-lived helper thread, of one node after the other, with our time limits.
"""

from __future__ import annotations

import re
from math import inf
from typing import Any, NamedTuple

import redis
import redis.asyncio

from wheel_lock.engine.connect import InTurn, RedisPyConnector, Server

UNKNOWN_HOSTS = ("", "?")  # said by a node that does not know its own address, or name: it is the one that was asked

_FAILED = re.compile(rb"cluster_state:fail\b.*cluster_current_epoch:(\d+)", re.DOTALL)
_SLOTS = 16384
_SHARES = 4  # of the time for all: what one node gets at least

AnyCluster = redis.RedisCluster | redis.asyncio.RedisCluster


class SlotRange(NamedTuple):
    """Slots that one master owns, the last one included."""

    first: int
    last: int
    server: Server


class _Answer(NamedTuple):
    """What a node has told."""

    ranges: list[SlotRange]
    replicas: list[Server]


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
        # Asked as well, so that it is found again when all of its masters have been replaced while nobody talked to them.
        self._given = tuple(self.servers)
        self._replicas: list[Server] = []
        self._turn = -1
        self._places: dict[Server, Server] = {}
        self._remap = getattr(client.nodes_manager, "address_remap", None)
        self._template = RedisPyConnector(_client_of_a_node(client))

    def known_place(self, host: str, port: str) -> Server | None:
        """Return where a node is reached which the cluster names so; None where the map has to be asked for first."""
        return (host, port) if self._remap is None else self._places.get((host, port))

    def _place(self, host: str, port: str) -> Server:
        """Like it, on a helper thread: the client may say that it is elsewhere, and that is a user's code."""
        if self._remap is None:
            return host, port
        place, place_port = self._remap((host, int(port)))
        self._places[host, port] = place, str(place_port)
        return place, str(place_port)

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
        """Return who owns which slots, nothing where no node tells; blocks.

        A master that is cut off from the others goes on telling what was true before. So a node that says of itself that
        its cluster is well is believed at once, and of those that do not the one that has seen the latest change.
        """
        masters = self.servers
        self._turn = (self._turn + 1) % len(masters)  # the last one to be asked first may be the one that hangs
        places = dict.fromkeys([*masters[self._turn :], *masters[: self._turn], *self._replicas, *self._given])
        latest, answer = -1.0, _Answer([], [])
        for server in places:
            try:
                told, epoch = self._ask_one(server, timeout_s / min(len(places), _SHARES))
            except BaseException:  # a credential provider's, or its cancellation: the next node may do better
                continue
            if told.ranges and epoch > latest:
                latest, answer = epoch, told
            if latest == inf:
                break
        self._replicas = answer.replicas or self._replicas
        return answer.ranges

    def _ask_one(self, server: Server, timeout_s: float) -> tuple[_Answer, float]:
        """Return what a node tells, and the latest epoch that it knows of; inf where it says that the cluster is well."""
        client = self.to(server).client(timeout_s)
        client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
        client.set_response_callback("CLUSTER INFO", lambda reply, **_: reply)
        try:
            told = self._read(client.execute_command("CLUSTER SLOTS"), server)
            try:
                state = _FAILED.search(client.execute_command("CLUSTER INFO"))
            except (redis.ResponseError, TypeError):  # it is not permitted to ask, or not answered as it should be
                state = None
        finally:
            client.close()
        return told, inf if state is None else int(state[1])

    def _read(self, reply: Any, asked: Server) -> _Answer:
        ranges: list[SlotRange] = []
        replicas: list[Server] = []
        for first, last, *nodes in reply:
            master, *others = [self._read_node(node, asked) for node in nodes]
            if not 0 <= int(first) <= int(last) < _SLOTS:
                raise ValueError(f"there are no slots {first!r:.40} to {last!r:.40}")
            ranges.append(SlotRange(int(first), int(last), master))
            replicas.extend(others)
        return _Answer(ranges, replicas)

    def _read_node(self, node: Any, asked: Server) -> Server:
        host = (node[0] or b"").decode()
        if not 0 < int(node[1]) < 1 << 16:
            raise ValueError(f"there is no port {node[1]!r:.40}")
        return self._place((asked[0] or "") if host in UNKNOWN_HOSTS else host, str(int(node[1])))


def _client_of_a_node(client: AnyCluster) -> redis.Redis | redis.asyncio.Redis:
    """Return a client for one node, whichever: its settings are those of all."""
    if isinstance(client, redis.RedisCluster):
        node = client.get_default_node()
        own: redis.Redis = node.redis_connection
        return own
    first = next(iter(client.nodes_manager.startup_nodes.values()))
    pool = redis.asyncio.ConnectionPool(connection_class=first.connection_class, **first.connection_kwargs)
    return redis.asyncio.Redis(connection_pool=pool)
