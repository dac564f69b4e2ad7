"""A Redis cluster as redis-py knows it: its nodes, and which of them owns which hash slots.

The slot map is asked for on a short-lived helper thread, of one node after the other, with our time limits.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.connection import AbstractConnection

from wheel_lock.net.client_references import Tie
from wheel_lock.net.connector import RedisPyConnector, RoundRobinConnector, Server, as_server
from wheel_lock.protocol.keys import SLOTS
from wheel_lock.protocol.resp import MalformedReply, error_text
from wheel_lock.runtime.notifier import NOTIFIER

logger = logging.getLogger("wheel_lock")

MOST_NODES = 1000  # masters, and as many replicas; the cluster specification recommends no more nodes in all

_FAILED = re.compile(rb"cluster_state:fail\b.*cluster_current_epoch:(\d{1,20})", re.DOTALL)
_MOST_INFO = 10_000
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
        given = [(str(node.host), str(node.port)) for node in client.nodes_manager.startup_nodes.values()]
        # A node has named some of them.
        sound = [server for server in given if as_server("given", server[1]) is not None]
        self.servers: list[Server] = [*sound[:MOST_NODES]]
        if not self.servers:
            raise ValueError("the client of the cluster knows no node that could be connected to")
        # Asked as well, so that it is found again when all of its masters have been replaced while nobody talked to them.
        self._given = tuple(self.servers)
        self._replicas: list[Server] = []
        self._turn = -1
        self._left_out: list[Server] = []  # nodes that were not asked for lack of time
        self._places: dict[Server, Server] = {}
        self._complained_of: set[Server] = set()  # nodes whose latest map had malformed entries
        remap = getattr(client.nodes_manager, "address_remap", None)
        self._remap = None if remap is None else Tie(remap)
        self._template = RedisPyConnector(_client_of_a_node(client))
        if type(client).on_connect is redis.RedisCluster.on_connect:
            # Besides the usual it sends READONLY, which is for replicas, and calls the user's function.
            asked_for = getattr(client, "user_on_connect_func", None)
            self._template.greet_with(None if asked_for is None else Tie(asked_for, _after_the_usual))

    def known_place(self, host: str, port: str) -> Server | None:
        """Return where a node is reached which the cluster names so; None where the map has to be asked for first."""
        return (host, port) if self._remap is None else self._places.get((host, port))

    def _place(self, host: str, port: str) -> Server:
        """Like it, on a helper thread: the client may say that it is elsewhere, and that is a user's code."""
        if self._remap is None:
            return host, port
        place, place_port = self._remap()((host, int(port)))
        self._places[host, port] = place, str(place_port)
        return place, str(place_port)

    def let_go(self, *owners: object) -> bool:
        """Drop strong references that lead to ``owners``: the client, its pool. Return whether there were any."""
        if self._remap is not None:
            self._remap.loosen(owners)
        return self._template.let_go(*owners) or (self._remap is not None and self._remap.loose)

    def to(self, server: Server) -> RedisPyConnector:
        """Return what connects to one node."""
        return self._template.at(server)

    def listener(self) -> RoundRobinConnector:
        """Return what connects to one master after the other, to listen: what one publishes, all pass on."""
        return RoundRobinConnector(lambda: [self.to(server).listener() for server in self.servers])

    def describe(self) -> str:
        """Return where the cluster is, without credentials."""
        return f"the cluster at {':'.join(map(str, self.servers[0]))}"

    def ask(self, timeout_s: float) -> list[SlotRange]:
        """Return who owns which slots, nothing where no node tells; blocks.

        A master that is cut off from the others goes on telling what was true before. So a node that says of itself that
        its cluster is well is believed at once, and of those that do not the one that has seen the latest change.

        Args:
            timeout_s: After this time no further node is asked; the remaining ones come first the next time. One node
                gets a quarter of it for each step, and all of it over a slow link.
        """
        masters = self.servers
        self._turn = (self._turn + 1) % len(masters)  # the last one to be asked first may be the one that hangs
        usual = [*masters[self._turn :], *masters[: self._turn], *self._replicas, *self._given]
        places = list(dict.fromkeys([*self._left_out, *usual]))
        self._left_out = []
        latest, answer = -1.0, _Answer([], [])
        until = time.monotonic() + timeout_s
        for number, server in enumerate(places):
            if number and time.monotonic() >= until:
                self._left_out = places[number:]
                break
            try:
                reply, epoch = self._ask_one(server, timeout_s / min(len(places), _SHARES))
            except BaseException:  # a credential provider's, or its cancellation: the next node may do better
                continue
            if reply.ranges and epoch > latest:
                latest, answer = epoch, reply
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
            reply = self._read(client.execute_command("CLUSTER SLOTS"), server)
            try:
                state = _FAILED.search(client.execute_command("CLUSTER INFO")[:_MOST_INFO])
            except (redis.ResponseError, redis.exceptions.InvalidResponse, TypeError):
                # It is not permitted to ask, or not answered as it should be.
                state = None
        finally:
            client.close()
        return reply, inf if state is None else int(state[1])

    def _read(self, reply: Any, asked: Server) -> _Answer:
        """Read a map. Malformed entries are skipped, with one line in the log until the node sends a map without any.

        Raises:
            MalformedReply: It is no list.
        """
        if type(reply) is not list:
            raise MalformedReply(f"a {type(reply).__name__} is no slot map")
        if len(self._places) > 2 * MOST_NODES:
            self._places.clear()
        read = _Map(lambda node: self._read_node(node, asked))
        for entry in reply[:SLOTS]:  # each entry has at least one slot
            read.add(entry)
        wrong = read.wrong + len(reply[SLOTS:])
        if not wrong:
            self._complained_of.discard(asked)
        elif asked not in self._complained_of and len(self._complained_of) < MOST_NODES:
            self._complained_of.add(asked)
            text = "the slot map of %s has %d entries that make no sense, and that are passed over"
            NOTIFIER.post(logger.warning, text, error_text(":".join(map(str, asked))), wrong)
        return _Answer(read.ranges, list(read.replicas))

    def _read_node(self, node: Any, asked: Server) -> Server | None:
        """Return the address of a node of a map; None if it is impossible."""
        if type(node) is not list or len(node) < 2 or type(node[1]) is not int:
            return None
        server = as_server(node[0] or b"", node[1], asked)
        return None if server is None else self._place(server[0] or "", server[1])


class _Map:
    """A slot map while it is read.

    Args:
        read_node: Returns the address of a node; None if it is impossible.

    Attributes:
        ranges: The well-formed ranges.
        replicas: The replicas of their masters.
        wrong: Number of malformed entries.
    """

    def __init__(self, read_node: Callable[[Any], Server | None]) -> None:
        self._read_node = read_node
        self._taken = bytearray(SLOTS)
        self._masters: set[Server] = set()
        self.ranges: list[SlotRange] = []
        self.replicas: dict[Server, None] = {}
        self.wrong = 0

    def add(self, entry: Any) -> None:
        """Take a range and its nodes."""
        if type(entry) is not list or len(entry) < 3 or not (type(entry[0]) is type(entry[1]) is int):
            self.wrong += 1
            return
        first, last = entry[:2]
        if not 0 <= first <= last < SLOTS or self._taken.find(1, first, last + 1) >= 0:
            self.wrong += 1
            return
        master = self._read_node(entry[2])
        if master is None or (master not in self._masters and len(self._masters) >= MOST_NODES):
            self.wrong += 1
            return
        self._masters.add(master)
        self._taken[first : last + 1] = b"\1" * (last + 1 - first)
        self.ranges.append(SlotRange(first, last, master))
        others = entry[3 : 3 + MOST_NODES - len(self.replicas)]
        replicas = [self._read_node(node) for node in others]
        self.wrong += None in replicas
        self.replicas.update((replica, None) for replica in replicas if replica is not None)


def _after_the_usual(function: Callable[[AbstractConnection], object]) -> Callable[[AbstractConnection], None]:
    """Return a ``redis_connect_func`` that does what a cluster's client does, but for READONLY."""

    def greet(connection: AbstractConnection) -> None:
        connection.on_connect()
        function(connection)

    return greet


def _client_of_a_node(client: AnyCluster) -> redis.Redis | redis.asyncio.Redis:
    """Return a client for one node, whichever: its settings are those of all."""
    if isinstance(client, redis.RedisCluster):
        node = client.get_default_node()
        own: redis.Redis = node.redis_connection
        return own
    first = next(iter(client.nodes_manager.startup_nodes.values()))
    settings = dict(first.connection_kwargs)
    if type(client).on_connect is redis.asyncio.RedisCluster.on_connect:
        settings.pop("redis_connect_func", None)  # READONLY, which is for replicas
    pool = redis.asyncio.ConnectionPool(connection_class=first.connection_class, **settings)
    return redis.asyncio.Redis(connection_pool=pool)
