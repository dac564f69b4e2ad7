"""Connecting to the nodes of a Redis cluster, and fetching its slot map.

The slot map is fetched on a short-lived helper thread, from one node after the other, with a time limit for each.
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
_SHARES = 4  # one node gets at least this fraction of the time for all

AnyCluster = redis.RedisCluster | redis.asyncio.RedisCluster


class SlotRange(NamedTuple):
    """A range of slots with one owner, ``last`` included."""

    first: int
    last: int
    server: Server


class ClusterConnector:
    """Makes the connectors to the nodes of one cluster.

    Args:
        client: The client, whose settings are used for every node.

    Attributes:
        servers: The known masters; at first the startup nodes of the client.
    """

    def __init__(self, client: AnyCluster) -> None:
        given = [(str(node.host), str(node.port)) for node in client.nodes_manager.startup_nodes.values()]
        # redis-py adds nodes from slot maps to them, which may be malformed.
        sound = [server for server in given if as_server("given", server[1]) is not None]
        self.servers: list[Server] = [*sound[:MOST_NODES]]
        if not self.servers:
            raise ValueError("the client of the cluster knows no node that could be connected to")
        # Asked as well, so that the cluster is found again after all masters were replaced while none was connected to.
        self._given = tuple(self.servers)
        self._replicas: list[Server] = []
        self._turn = -1
        self._left_out: list[Server] = []  # nodes that were not asked for lack of time
        self._places: dict[Server, Server] = {}  # addresses as the client's address_remap maps them
        self._complained_of: set[Server] = set()  # nodes whose latest map had malformed entries
        remap = getattr(client.nodes_manager, "address_remap", None)
        self._remap = None if remap is None else Tie(remap)
        self._template = RedisPyConnector(_client_of_a_node(client))
        if type(client).on_connect is redis.RedisCluster.on_connect:
            # It sends READONLY, which is for replicas, and calls the user's function.
            asked_for = getattr(client, "user_on_connect_func", None)
            self._template.greet_with(None if asked_for is None else Tie(asked_for, _after_the_usual))

    def known_place(self, host: str, port: str) -> Server | None:
        """Return the address to use for an address that the cluster sends; None if the slot map must be fetched first."""
        return (host, port) if self._remap is None else self._places.get((host, port))

    def _place(self, host: str, port: str) -> Server:
        """Return the same, never None. On a helper thread, because the client's address_remap is a user's code."""
        if self._remap is None:
            return host, port
        place, place_port = self._remap()((host, int(port)))
        self._places[host, port] = place, str(place_port)
        return place, str(place_port)

    def let_go(self, *owners: object) -> bool:
        """Drop strong references that lead to ``owners``, such as the client; return whether there were any."""
        if self._remap is not None:
            self._remap.loosen(owners)
        return self._template.let_go(*owners) or (self._remap is not None and self._remap.loose)

    def to(self, server: Server) -> RedisPyConnector:
        """Return the connector to one node."""
        return self._template.at(server)

    def listener(self) -> RoundRobinConnector:
        """Return a connector to any master, for subscriptions: a cluster forwards published messages to all nodes."""
        return RoundRobinConnector(lambda: [self.to(server).listener() for server in self.servers])

    def describe(self) -> str:
        """Return the address of one of its nodes, without credentials."""
        return f"the cluster at {':'.join(map(str, self.servers[0]))}"

    def ask(self, timeout_s: float) -> list[SlotRange]:
        """Fetch the slot map; return an empty list if no node sends one. Blocks.

        A master that is cut off from the others goes on sending its old map. So the map of the first node whose cluster
        state is not "fail" is used; if there is none, the map with the largest configuration epoch.

        Args:
            timeout_s: No further node is asked after this time; those that are left are asked first the next time. Each
                step with one node is limited to a quarter of it, and all steps together to all of it.
        """
        masters = self.servers
        self._turn = (self._turn + 1) % len(masters)  # the master that was asked first the last time may hang
        usual = [*masters[self._turn :], *masters[: self._turn], *self._replicas, *self._given]
        places = list(dict.fromkeys([*self._left_out, *usual]))
        self._left_out = []
        latest, answer = -1.0, _Map(lambda node: None)
        until = time.monotonic() + timeout_s
        for number, server in enumerate(places):
            if number and time.monotonic() >= until:
                self._left_out = places[number:]
                break
            try:
                reply, epoch = self._ask_one(server, timeout_s / min(len(places), _SHARES))
            except BaseException:  # of a user's credential provider, too; the next node may answer
                continue
            if reply.ranges and epoch > latest:
                latest, answer = epoch, reply
            if latest == inf:
                break
        self._replicas = list(answer.replicas) or self._replicas
        return answer.ranges

    def _ask_one(self, server: Server, timeout_s: float) -> tuple[_Map, float]:
        """Return a node's slot map, and its current epoch, or inf if its cluster state is not "fail"."""
        client = self.to(server).client(timeout_s)
        client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
        client.set_response_callback("CLUSTER INFO", lambda reply, **_: reply)
        try:
            reply = self._read(client.execute_command("CLUSTER SLOTS"), server)
            try:
                state = _FAILED.search(client.execute_command("CLUSTER INFO")[:_MOST_INFO])
            except (redis.ResponseError, redis.exceptions.InvalidResponse, TypeError):
                state = None  # not permitted, or malformed
        finally:
            client.close()
        return reply, inf if state is None else int(state[1])

    def _read(self, reply: Any, asked: Server) -> _Map:
        """Parse a slot map. Malformed entries are skipped, and logged once until the node sends a map without any.

        Raises:
            MalformedReply: It is not a list.
        """
        if type(reply) is not list:
            raise MalformedReply(f"a {type(reply).__name__} is no slot map")
        if len(self._places) > 2 * MOST_NODES:
            self._places.clear()
        read = _Map(lambda node: self._read_node(node, asked))
        for entry in reply[:SLOTS]:  # each entry has at least one slot
            read.add(entry)
        read.wrong += len(reply[SLOTS:])
        if not read.wrong:
            self._complained_of.discard(asked)
        elif asked not in self._complained_of and len(self._complained_of) < MOST_NODES:
            self._complained_of.add(asked)
            text = "the slot map of %s has %d entries that make no sense, and that are passed over"
            NOTIFIER.post(logger.warning, text, error_text(":".join(map(str, asked))), read.wrong)
        return read

    def _read_node(self, node: Any, asked: Server) -> Server | None:
        """Return the address of a node in a slot map; None if it is malformed."""
        if type(node) is not list or len(node) < 2 or type(node[1]) is not int:
            return None
        server = as_server(node[0] or b"", node[1], asked)
        return None if server is None else self._place(server[0] or "", server[1])


class _Map:
    """A slot map that a node has sent.

    Args:
        read_node: Returns the address of a node; None if it is malformed.

    Attributes:
        ranges: The valid ranges.
        replicas: The replicas of their masters, in order.
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
        """Add an entry: a range of slots, its master and its replicas."""
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
    """Return a ``redis_connect_func`` that does the same as a cluster client's, without READONLY."""

    def greet(connection: AbstractConnection) -> None:
        connection.on_connect()
        function(connection)

    return greet


def _client_of_a_node(client: AnyCluster) -> redis.Redis | redis.asyncio.Redis:
    """Return a client for any node; the settings are the same for all."""
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
