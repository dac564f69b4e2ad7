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

from wheel_lock import valkey_clients
from wheel_lock.net.client_references import Tie
from wheel_lock.net.connector import (
    Connection,
    NothingListens,
    RedisPyConnector,
    Server,
    as_server,
    is_refused,
)
from wheel_lock.protocol.keys import SLOTS
from wheel_lock.protocol.resp import MalformedReply, error_text
from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")

MOST_NODES = 1000  # limit for masters, and for replicas; the cluster specification recommends at most 1000 in all

_FAILED = re.compile(rb"cluster_state:fail\b.*cluster_current_epoch:(\d{1,20})", re.DOTALL)
_MAX_INFO_BYTES = 10_000
_SHARES = 4  # one node gets at least this fraction of the total time

AnyCluster = redis.RedisCluster | redis.asyncio.RedisCluster


class SlotRange(NamedTuple):
    """A range of slots with one owner, ``last`` included."""

    first: int
    last: int
    server: Server


class ClusterConnector:
    """Makes the connectors to the nodes of one cluster, all with the settings of ``client``.

    Attributes:
        servers: The known masters; at first the startup nodes of the client.
    """

    def __init__(self, client: AnyCluster, owner: str | None = None) -> None:
        given = [(str(node.host), str(node.port)) for node in client.nodes_manager.startup_nodes.values()]
        # redis-py adds the nodes of slot maps to them, which may be malformed.
        sound = [server for server in given if as_server("given", server[1]) is not None]
        self.servers: list[Server] = [*sound[:MOST_NODES]]
        if not self.servers:
            raise ValueError("the client of the cluster knows no node that could be connected to")
        # Asked as well, so that the cluster is found again after all masters were replaced while none was connected to.
        self._given = tuple(self.servers)
        self._replicas: list[Server] = []
        self._turn = -1
        self._left_out: list[Server] = []  # nodes that were not asked for lack of time
        self._remapped: dict[Server, Server] = {}  # the results of the client's address_remap
        self._malformed: set[Server] = set()  # nodes whose latest map had malformed entries
        remap = getattr(client.nodes_manager, "address_remap", None)
        self._remap = None if remap is None else Tie(remap)
        self._template = RedisPyConnector(valkey_clients.node_client(client))
        self._template.owner = owner
        self._template.in_cluster = True
        if valkey_clients.greets_as_usual(client):
            # It sends READONLY, which is for replicas, and calls the user's function.
            function = getattr(client, "user_on_connect_func", None)
            self._template.greet_with(None if function is None else Tie(function, _after_on_connect))

    @property
    def obstacle(self) -> str | None:
        """As of :class:`RedisPyConnector`, for all nodes."""
        return self._template.obstacle

    def names_of(self, server: Server) -> tuple[str, ...]:
        """Return the addresses by which nodes name a server of this address."""
        mapped = [named for named, to in list(self._remapped.items()) if to == server]
        return tuple(":".join(map(str, named)) for named in (server, *mapped))

    def known_place(self, host: str, port: str) -> Server | None:
        """Return the address to use for one that the cluster sends; None if the slot map must be fetched first."""
        return (host, port) if self._remap is None else self._remapped.get((host, port))

    def _place(self, host: str, port: str) -> Server:
        """Map an address that the cluster sends. On a helper thread: the client's address_remap is a user's code."""
        if self._remap is None:
            return host, port
        mapped_host, mapped_port = self._remap()((host, int(port)))
        self._remapped[host, port] = mapped = mapped_host, str(mapped_port)
        return mapped

    def let_go(self, *owners: object) -> bool:
        """Drop strong references that lead to ``owners``, such as the client; return whether there were any."""
        if self._remap is not None:
            self._remap.loosen(owners)
        return self._template.let_go(*owners) or (self._remap is not None and self._remap.loose)

    def to(self, server: Server) -> RedisPyConnector:
        return self._template.at(server)

    def listener(self) -> AnyMaster:
        """Return a connector to any master, for subscriptions: a cluster forwards published messages to all nodes."""
        return AnyMaster(self)

    def describe(self) -> str:
        return f"the cluster at {':'.join(map(str, self.servers[0]))}"

    def label(self) -> str:
        """Return what metrics call the cluster."""
        return self.describe()

    def ask(self, timeout_s: float) -> list[SlotRange]:
        """Fetch the slot map; return an empty list if no node sends one. Blocks.

        A master that is cut off from the others goes on sending its old map. So the map of the first node whose cluster
        state is not "fail" is used; if there is none, the map with the largest configuration epoch.

        Args:
            timeout_s: No further node is asked after this time; those that are left are asked first the next time. Each
                step with one node is limited to a quarter of it, and all steps together to all of it.

        Raises:
            NothingListens: All nodes were asked, and each is refused.
        """
        masters = self.servers
        self._turn = (self._turn + 1) % len(masters)  # the master that was asked first the last time may hang
        usual = [*masters[self._turn :], *masters[: self._turn], *self._replicas, *self._given]
        servers = list(dict.fromkeys([*self._left_out, *usual]))
        self._left_out = []
        latest_epoch, latest = -1.0, _SlotMap(lambda node: None)
        refusals: list[BaseException] = []
        until = time.monotonic() + timeout_s
        for number, server in enumerate(servers):
            if number and time.monotonic() >= until:
                self._left_out = servers[number:]
                break
            try:
                slot_map, epoch = self._ask_one(server, timeout_s / min(len(servers), _SHARES))
            except BaseException as error:  # of a user's credential provider, too; the next node may answer
                refusals += [error] if is_refused(error) else []
                continue
            if slot_map.ranges and epoch > latest_epoch:
                latest_epoch, latest = epoch, slot_map
            if latest_epoch == inf:
                break
        if len(refusals) == len(servers):
            raise NothingListens(f"no node of {self.describe()} is there: {error_text(refusals[0])}") from refusals[0]
        self._replicas = list(latest.replicas) or self._replicas
        return latest.ranges

    def _ask_one(self, server: Server, timeout_s: float) -> tuple[_SlotMap, float]:
        """Return a node's slot map, and its current epoch, or inf if its cluster state is not "fail"."""
        client = self.to(server).client(timeout_s)
        client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
        client.set_response_callback("CLUSTER INFO", lambda reply, **_: reply)
        try:
            slot_map = self._read(client.execute_command("CLUSTER SLOTS"), server)
            try:
                failed = _FAILED.search(client.execute_command("CLUSTER INFO")[:_MAX_INFO_BYTES])
            except (redis.ResponseError, redis.exceptions.InvalidResponse, TypeError):
                failed = None  # not permitted, or malformed
        finally:
            client.close()
        return slot_map, inf if failed is None else int(failed[1])

    def _read(self, reply: Any, asked: Server) -> _SlotMap:
        """Parse a slot map. Malformed entries are skipped, and logged once until the node sends a map without any."""
        if type(reply) is not list:
            raise MalformedReply(f"a {type(reply).__name__} is not a slot map")
        if len(self._remapped) > 2 * MOST_NODES:
            self._remapped.clear()
        slot_map = _SlotMap(lambda node: self._read_node(node, asked))
        malformed = len(reply[SLOTS:])  # each entry has at least one slot
        for entry in reply[:SLOTS]:
            malformed += not slot_map.add(entry)
        if not malformed:
            self._malformed.discard(asked)
        elif asked not in self._malformed and len(self._malformed) < MOST_NODES:
            self._malformed.add(asked)
            text = "the slot map of %s has %d malformed entries, which are skipped"
            NOTIFIER.post(logger.warning, text, error_text(":".join(map(str, asked))), malformed)
        return slot_map

    def _read_node(self, node: Any, asked: Server) -> Server | None:
        """Return the address of a node in a slot map; None if it is malformed."""
        if type(node) is not list or len(node) < 2 or type(node[1]) is not int:
            return None
        server = as_server(node[0] or b"", node[1], asked)
        return None if server is None else self._place(server[0] or "", server[1])


class AnyMaster:
    """Connects, for subscriptions, to one of the masters of a cluster, and to the next one after a failure."""

    discovers = True
    in_cluster = False

    def __init__(self, cluster: ClusterConnector) -> None:
        self._cluster = cluster
        self._turn = 0

    def _current(self) -> RedisPyConnector:
        servers = self._cluster.servers
        return self._cluster.to(servers[self._turn % len(servers)]).listener()

    def listener(self) -> AnyMaster:
        return self

    def label(self) -> str:
        return self._current().label()

    def describe(self) -> str:
        return self._current().describe()

    def connect(self, timeout_s: float) -> Connection:
        try:
            return self._current().connect(timeout_s)
        except BaseException:
            self._turn += 1
            raise


class _SlotMap:
    """A slot map that a node has sent. ``read_node`` returns the address of a node; None if it is malformed."""

    def __init__(self, read_node: Callable[[Any], Server | None]) -> None:
        self._read_node = read_node
        self._taken = bytearray(SLOTS)
        self._masters: set[Server] = set()
        self.ranges: list[SlotRange] = []
        self.replicas: dict[Server, None] = {}  # of all masters, in order

    def add(self, entry: Any) -> bool:
        """Add an entry: a range of slots, its master and its replicas; return whether it is well-formed."""
        if type(entry) is not list or len(entry) < 3 or not (type(entry[0]) is type(entry[1]) is int):
            return False
        first, last = entry[:2]
        if not 0 <= first <= last < SLOTS or self._taken.find(1, first, last + 1) >= 0:
            return False
        master = self._read_node(entry[2])
        if master is None or (master not in self._masters and len(self._masters) >= MOST_NODES):
            return False
        self._masters.add(master)
        self._taken[first : last + 1] = b"\1" * (last + 1 - first)
        self.ranges.append(SlotRange(first, last, master))
        replicas = [self._read_node(node) for node in entry[3 : 3 + MOST_NODES - len(self.replicas)]]
        self.replicas.update((replica, None) for replica in replicas if replica is not None)
        return None not in replicas


def _after_on_connect(function: Callable[[AbstractConnection], object]) -> Callable[[AbstractConnection], None]:
    """Return a ``redis_connect_func`` that does what a cluster client's does, without READONLY."""

    def greet(connection: AbstractConnection) -> None:
        connection.on_connect()
        function(connection)

    return greet
