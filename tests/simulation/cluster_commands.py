"""What a node of a cluster knows about slots, and how it answers calls about keys that are elsewhere.

It is what ``getNodeByQuery`` of Redis 7.0 does, and ``scriptVerifyClusterState`` for the commands of scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.commands import Server
from tests.simulation.server import FORMS, Refused, Status, form
from wheel_lock.protocol import keys as hashing

_ALL_KEYS = (b"DEL", b"EXISTS")
_SCRIPTS = (b"EVAL", b"EVALSHA")
_CHANNELS = (b"SPUBLISH", b"SSUBSCRIBE", b"SUNSUBSCRIBE")

Address = tuple[str, int]


def _keys_of(name: bytes, words: list[bytes]) -> list[bytes]:
    """Return the keys, or the channels of shards, that decide which node executes a command."""
    if name in _SCRIPTS:
        return words[3 : 3 + int(words[2])] if words[2].isdigit() else []
    if name == b"SPUBLISH":
        return words[1:2]
    if name in _ALL_KEYS or name in _CHANNELS:
        return words[1:]
    return words[1:2] if {"k", "w"} & set(FORMS[name].flags) else []


class SlotTable:
    """What one node knows about slots.

    Args:
        me: The node's own address, or its master's if it is a replica.
        owners: The owner of each slot; None for one that no node serves.

    Attributes:
        well: Whether the node takes the cluster to be well.
        epoch: The latest configuration epoch that it has heard of.
        migrating, importing: The slots that it gives away, or gets, each with the other node.
        replicas: Those that it knows of, by their masters.
    """

    def __init__(self, me: Address, owners: Sequence[Address | None]) -> None:
        self.me = me
        self.owners = list(owners)
        self.well = True
        self.epoch = 1
        self.migrating: dict[int, Address] = {}
        self.importing: dict[int, Address] = {}
        self.replicas: Mapping[Address, Sequence[Address]] = {}

    def check(self, server: Server, name: bytes, words: list[bytes], *, asking: bool, script: Any) -> None:
        """Raise Refused if this node does not execute such a command."""
        keys = _keys_of(name, words)
        if not keys:
            return
        refusal = self._refusal(server, keys, asking=asking, channels=name in _CHANNELS)
        if refusal is None:
            return
        if script is None:
            raise Refused(refusal)
        if refusal == "CLUSTERDOWN The cluster is down":
            raise Refused("ERR Script attempted to execute a command while the cluster is down")
        raise Refused("ERR Script attempted to access a non local key in a cluster node")

    def _refusal(self, server: Server, keys: list[bytes], *, asking: bool, channels: bool) -> str | None:
        slot = hashing.hash_slot(keys[0])
        owner = self.owners[slot]
        if owner is None:
            return "CLUSTERDOWN Hash slot not served"
        if any(hashing.hash_slot(key) != slot for key in keys):
            return "CROSSSLOT Keys in request don't hash to the same slot"
        if not self.well:
            return "CLUSTERDOWN The cluster is down"
        migrating = owner == self.me and slot in self.migrating
        importing = not migrating and slot in self.importing
        if migrating or importing:
            missing = 0 if channels else sum(not server.has(key) for key in keys)
            if migrating and missing:
                if missing < len(keys):
                    return "TRYAGAIN Multiple keys request during rehashing of slot"
                return f"ASK {slot} {_text(self.migrating[slot])}"
            if importing and asking:
                if missing and len(set(keys)) > 1:
                    return "TRYAGAIN Multiple keys request during rehashing of slot"
                return None
        return None if owner == self.me and not server.replica else f"MOVED {slot} {_text(owner)}"

    def describe(self) -> list[Any]:
        """Return the reply to CLUSTER SLOTS."""
        ranges: list[Any] = []
        for slot, owner in enumerate(self.owners):
            if owner is None:
                continue
            if ranges and ranges[-1][2] == owner and ranges[-1][1] == slot - 1:
                ranges[-1][1] = slot
            else:
                ranges.append([slot, slot, owner])
        return [
            [first, last, *(_node(node) for node in (owner, *self.replicas.get(owner, ())))]
            for first, last, owner in ranges
        ]


def move_key(source: Server, target: Server, key: bytes) -> None:
    """Move a key, as MIGRATE does; no effect if it has expired."""
    if source.has(key):
        target.data[key] = source.data.pop(key)
        target.expires.pop(key, None)
        if key in source.expires:
            target.expires[key] = target.now_ms + source.expires.pop(key) - source.now_ms
        source.report(key)


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _node(address: Address) -> list[Any]:
    return [address[0].encode(), address[1], f"{address[0]}:{address[1]}".encode().ljust(40, b"0"), []]


@form(1, "s")
def asking(server: Server) -> Status:
    if server.slots is None:
        raise Refused("ERR This instance has cluster support disabled")
    server._session.asking = True
    return Status(b"OK")


@form(-2, "s")
def cluster(server: Server, what: bytes, *words: bytes) -> Any:
    slots: SlotTable | None = server.slots
    if slots is None:
        raise Refused("ERR This instance has cluster support disabled")
    if what.upper() == b"SLOTS":
        return slots.describe()
    if what.upper() == b"INFO":
        state = b"ok" if slots.well else b"fail"
        return b"cluster_enabled:1\r\ncluster_state:%b\r\ncluster_current_epoch:%d\r\n" % (state, slots.epoch)
    raise Refused("ERR unknown subcommand")


@form(1)
def role(server: Server) -> list[Any]:
    if server.replica:
        return [b"slave", b"somewhere", 6379, b"connected", 0]
    return [b"master", 0, []]
