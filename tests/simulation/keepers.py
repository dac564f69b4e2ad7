"""Keepers in the simulation: the record is the real one, and the world releases what was in it when its process was killed.

What a keeper takes for a death is not part of the simulation: it is shown with real processes (tests/keeper).
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

import wheel_lock.keeper.keeping
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.interfaces import group_of
from wheel_lock.keeper import entries, program, record
from wheel_lock.keeper.burial import Store
from wheel_lock.keeper.entries import Entry, read_record
from wheel_lock.keeper.keeping import Keeping, Sign
from wheel_lock.keeper.record import RELEASES
from wheel_lock.keeper.server import Server
from wheel_lock.net.node import Node
from wheel_lock.protocol.resp import split_bulk_strings

if TYPE_CHECKING:
    from tests.simulation.hosts import Host
    from tests.simulation.processes import Process
    from tests.simulation.record import Belief
    from tests.simulation.scheduler import Dice
    from tests.simulation.world import Settings, World

_MOST = 2  # entries of one call
_PASSES_S = (0.0, 0.1, 0.5, 2.0)  # behind the first one
_keeping = wheel_lock.keeper.keeping


class WorldsKeeping(Keeping):
    """The record of an engine, without a session: the world is its keeper."""

    def _reset(self) -> None:
        super()._reset()
        self.connections: dict[Node, str] = {}  # the hosts that the keeper has connections to

    def _note(self, sign: Sign, why: str = "") -> None:
        if sign is Sign.DUE:
            for place in self._due:
                host = (place.node.server or place.names[0].split(":"))[0]
                assert host is not None
                self.connections[place.node] = host
                place.due_at = None
            self.connections = {node: host for node, host in self.connections.items() if node in self._places}
            self._gone = []

    @property
    def entries(self) -> list[Entry]:
        return [] if self._record is None else read_record(self._record.file)


class Line:
    """A keeper's connection to a server, as a socket."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._session = host.server.connect(lambda data: None)
        self._reader = hiredis.Reader()
        self._replies = b""

    def settimeout(self, seconds: float) -> None: ...

    def getpeername(self) -> str:
        return self._host.name

    def send(self, data: memoryview) -> int:
        self._reader.feed(bytes(data))
        while (words := self._reader.gets()) is not False:
            self._replies += self._host.server.handle(self._session, words)
        return len(data)

    def recv(self, most: int) -> bytes:
        some, self._replies = self._replies[:most], self._replies[most:]
        return some

    def close(self) -> None:
        self._host.server.disconnect(self._session)


def replacements() -> list[tuple[Any, str, Any]]:
    """Return objects, names of their attributes, and what stands for those during a simulation."""
    small = ((160, 512), (320, 128), (4096, 16), (512, 64))  # because mutants have little memory
    return [
        (_keeping, "Keeping", WorldsKeeping),
        (entries, "REGIONS", small),
        (program, "REGIONS", small),
        (program, "say", lambda text: None),
        (record, "REGIONS", small),
        (record, "_LEAST", 2),
        (record, "_FEW", 1),
    ]


def choose(settings: Settings, dice: Dice) -> None:
    """Decide whether processes have keepers, and whether the history is about that: processes are killed all the time."""
    from tests.simulation.operations import fork
    from tests.simulation.programs import ACTIONS, RARE

    kept = settings.context["release_on_crash"] = dice.one_in(2)
    if kept and not settings.theme and dice.one_in(3):
        settings.theme, settings.faults, settings.calm_s = "crashes", ("kill",), 0.4
        settings.processes, settings.users = 2, 3
        if settings.masters == 1:
            settings.actions = (dice.pick(ACTIONS[:10]), dice.pick(ACTIONS), dice.pick((*ACTIONS, *RARE)))
            if dice.one_in(4):  # children have records of their own
                settings.actions, settings.tasks = (*settings.actions[:2], partial(partial, fork)), False


def recorded(engine: Engine) -> int:
    """Return how many leases are in the record of an engine."""
    return len(engine.keeping.entries) if isinstance(engine.keeping, WorldsKeeping) else 0


def note_death(process: Process, beliefs: list[Belief]) -> None:
    """A process was killed that believed to hold these locks: its keeper releases them, soon and again later."""
    world = process.world
    for engine in process.engines:
        if world.settings.context["release_on_crash"] and not engine.closed:
            assert isinstance(engine.keeping, WorldsKeeping)
            _check_connections(world, engine, engine.keeping)
            entries, hosts = engine.keeping.entries, set(engine.keeping.connections.values())
            own = [belief for belief in beliefs if group_of(belief.lease).renewer in engine.router.shards]
            soon_s = world.tape.stream("keeper").draw().up_to(0.05)
            for pause_s in _PASSES_S:
                release = partial(_release, world, hosts, entries, own)
                world.scheduler.after(soon_s + pause_s, release)


def _check_connections(world: World, engine: Engine, keeping: WorldsKeeping) -> None:
    """The keeper has a connection to each server that the engine uses."""
    for node in [shard.node for shard in engine.router.shards if engine.router.owns_names(shard)]:
        has = keeping.connections.get(node)
        if node.connected and node.server is not None and has != node.server[0]:
            world.rules.broken("crash", f"the keeper has a connection to {has}, and the process to {node.server}")


def _release(world: World, names: Set[str], entries: list[Entry], beliefs: list[Belief]) -> None:
    rules = world.rules
    for _, _, body in entries:
        token = split_bulk_strings(body)[1]
        if token in rules.handoffs.tokens:
            rules.broken("crash", f"the record has the exported {token!r}")
        if token in rules._parents:
            rules.broken("crash", f"the record of a child has {token!r} of its parent")
    hosts = [host for host in world.hosts if host.name in names and host.alive and not host.paused]
    if not hosts:
        return
    world.scheduler.note("a keeper releases %s", [split_bulk_strings(body)[:2] for _, _, body in entries])
    rules._sender = None
    servers = [_server(host) for host in hosts]
    Store(servers, lambda work, pause_s, place: pause_s or work()).release(entries, lambda left: None)
    for server in servers:
        server.close()
    for belief in beliefs:
        host = hosts[0] if world.topology is None else world.host_of(belief.name)
        if host in hosts and _is_well(world, host, belief.name):
            lock_type: Any = belief.lease.group.lock_type  # type: ignore[attr-defined]
            if lock_type.dies_with_holder:
                rules.exercised["crash"] += 1
                if belief.token in rules._holders(host, belief.name):
                    rules.broken("crash", f"{belief.name!r} has {belief.token!r} of a process that was killed")


def _server(host: Host) -> Server:
    scripts = [release.described(host.capability, keyed=host.server.slots is not None) for release in RELEASES]
    line: Any = Line(host)
    return Server(line, {"names": [f"{host.name}:6379"], "scripts": scripts, "most": _MOST})


def _is_well(world: World, host: Host, key: bytes) -> bool:
    """Return whether a server executes what a keeper asks for, and all others know that it is the one to ask."""
    server = host.server
    if server.refusal is not None or server.denied or server.read_only or server.misconfigured:
        return False
    return world.topology is None or world.topology.agrees_on(key)
