"""Names that live where a test wants them, and slots that are on their way from the first master to the second."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, MASTERS, Nodes
from wheel_lock import Lock
from wheel_lock.protocol.keys import SLOTS, hash_slot

_PLACES = [next(n for n in range(MASTERS) if slot < (n + 1) * SLOTS // MASTERS) for slot in range(SLOTS)]
"""Which of the masters owns each slot at first."""


def patient(nodes: Nodes, timeout_s: float = 60.0) -> Nodes:
    """Have none of the nodes take a silent one to be down before so long: by default not while a test runs."""
    nodes.node_timeout_ms = round(timeout_s * 1000)
    for server in nodes.servers:
        server.admin.config_set("cluster-node-timeout", nodes.node_timeout_ms)
    return nodes


def heal(nodes: Nodes) -> None:
    """Have every node run, be what it was at first, and every slot be where it is; and nothing in it."""
    for server in nodes.servers:
        server.heal()
    eventually(lambda: _healed(nodes), 2 * LONG_S, "every node is what it was", interval_s=0.01)
    # Only now: a restarted one takes part again the later, the longer the time is.
    patient(nodes, nodes.node_timeout_ms / 1000)
    for server in nodes.masters:
        server.admin.flushall()


def _healed(nodes: Nodes) -> bool:
    for server in nodes.masters:
        # One that was away for long may hear of its heir long after its start.
        if server.admin.role()[0] != b"master":
            server.admin.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
            return False
    if not at_home(nodes):
        return False
    infos = map(nodes.info, nodes.servers)
    whole = all(info["cluster_state"] == "ok" and info["cluster_slots_ok"] == SLOTS for info in infos)
    return whole and all(server.admin.role()[0] == b"slave" for server in nodes.servers[MASTERS:])


def at_home(nodes: Nodes) -> bool:
    """Whether all masters agree that every slot is where it was at first; those that are not are moved back.

    After moves gossip may have two masters name each other as the owner of a slot, for good. It names no slot that no
    node serves, so the state of the cluster does not show it.
    """
    misplaced = {slot for server in nodes.masters for slot in _misplaced_slots(nodes, server)}
    for server in nodes.masters if misplaced else ():
        server.admin.flushall()  # or it does not give a slot away
    for number in {_PLACES[slot] for slot in misplaced}:
        nodes.masters[number].admin.execute_command("CLUSTER", "BUMPEPOCH")  # its claim is the newest one from now on
    for slot in misplaced:
        nodes.end_move(slot, nodes.masters[_PLACES[slot]])
    return not misplaced


def _misplaced_slots(nodes: Nodes, server: RedisServer) -> set[int]:
    """The slots that are not where they were at first, as one of the nodes says."""
    places = {master.port: number for number, master in enumerate(nodes.masters)}
    found = server.admin.execute_command("CLUSTER", "SLOTS")
    seen = {slot: places.get(owner[1]) for first, last, owner, *_ in found for slot in range(first, last + 1)}
    return {slot for slot, place in enumerate(_PLACES) if seen.get(slot) != place}


def names_in(slot: int, how_many: int) -> list[str]:
    tag = next(f"{{{n:x}}}" for n in itertools.count() if hash_slot(f"{n:x}".encode()) == slot)
    return [f"{tag}:{n}" for n in range(how_many)]


def home(name: str) -> int:
    """Which of the masters owns the slot of a name, as long as none has been moved."""
    return _PLACES[hash_slot(name.encode())]


def names_at(number: int, how_many: int, prefix: str = "order") -> list[str]:
    """Names that live on one of the masters."""
    found = (f"{prefix}:{n}" for n in itertools.count())
    return list(itertools.islice((name for name in found if home(name) == number), how_many))


@contextmanager
def on_its_way(nodes: Nodes, slot: int) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A slot is on its way from the first master to the second; it stays at the first unless a test ends the move."""
    source, target = nodes.masters[:2]
    nodes.begin_move(slot, source, target)
    try:
        yield source, target
    finally:
        for server in (source, target):
            server.admin.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


def keys_in(slot: int, server: RedisServer) -> int:
    return int(server.admin.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot))


def is_renewed(*locks: Lock) -> None:
    """Wait until each of them has been renewed twice more, and so at least once by a call that was sent from now on."""
    before = [lock.renewals for lock in locks]
    eventually(lambda: all(lock.renewals > count + 1 for lock, count in zip(locks, before, strict=True)), LONG_S)


def listeners(server: RedisServer, channel: str) -> int:
    return int(server.admin.execute_command("PUBSUB", "SHARDNUMSUB", channel)[1])
