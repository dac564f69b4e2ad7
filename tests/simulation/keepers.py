"""Keepers in the simulation: the record is the real one, and the world releases what was in it when its process was killed.

What a keeper takes for a death is not part of the simulation: it is shown with real processes (tests/keeper).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

import wheel_lock.keeper.keeping
from wheel_lock.engine.interfaces import group_of
from wheel_lock.keeper import program, record
from wheel_lock.keeper.keeping import Keeping
from wheel_lock.keeper.program import Entry, Server, read_record
from wheel_lock.keeper.record import RELEASES
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

    def _open(self) -> None: ...

    @property
    def entries(self) -> list[Entry]:
        return [] if self._record is None else read_record(self._record.file)


def replacements() -> list[tuple[Any, str, Any]]:
    """Return objects, names of their attributes, and what stands for those during a simulation."""
    small = ((160, 512), (320, 128), (4096, 16))  # because mutants have little memory
    return [
        (_keeping, "Keeping", WorldsKeeping),
        (program, "REGIONS", small),
        (record, "REGIONS", small),
        (record, "_BYTES", sum(size * slots for size, slots in small)),
    ]


def choose(settings: Settings, dice: Dice) -> None:
    """Decide whether processes have keepers, and whether the history is about that: processes are killed all the time."""
    from tests.simulation.programs import ACTIONS, RARE

    if settings.masters > 1 or settings.topology:
        return
    kept = settings.context["release_on_crash"] = dice.one_in(2)
    if kept and not settings.theme and dice.one_in(3):
        settings.theme, settings.faults, settings.calm_s = "crashes", ("kill",), 0.4
        settings.processes, settings.users = 2, 3
        settings.actions = (dice.pick(ACTIONS[:10]), dice.pick(ACTIONS), dice.pick((*ACTIONS, *RARE)))


def note_death(process: Process, beliefs: list[Belief]) -> None:
    """A process was killed that believed to hold these locks: its keeper releases them, soon and again later."""
    world = process.world
    for engine in process.engines:
        if isinstance(engine.keeping, WorldsKeeping) and not engine.closed:
            entries = engine.keeping.entries
            own = [belief for belief in beliefs if group_of(belief.lease).renewer in engine.router.shards]
            soon_s = world.tape.stream("keeper").draw().up_to(0.05)
            for pause_s in _PASSES_S:
                release = partial(_release, world, world.hosts[0], entries, own)
                world.scheduler.after(soon_s + pause_s, release)


def _release(world: World, host: Host, entries: list[Entry], beliefs: list[Belief]) -> None:
    server, rules = host.server, world.rules
    for _, _, body in entries:
        token = split_bulk_strings(body)[1]
        if token in rules.handoffs.tokens:
            rules.broken("crash", f"the record has the exported {token!r}")
        if token in rules._parents:
            rules.broken("crash", f"the record of a child has {token!r} of its parent")
    if host.paused or not host.alive:
        return
    world.scheduler.note("a keeper releases %s", [split_bulk_strings(body)[:2] for _, _, body in entries])
    rules._sender = None
    session, reader = server.connect(lambda data: None), hiredis.Reader()
    for message in _calls(host, entries):
        reader.feed(message)
        server.handle(session, reader.gets())
    server.disconnect(session)
    if server.refusal is None and not (server.denied or server.read_only or server.misconfigured):
        for belief in beliefs:
            lock_type: Any = belief.lease.group.lock_type  # type: ignore[attr-defined]
            if lock_type.dies_with_holder:
                rules.exercised["crash"] += 1
                if belief.token in rules._holders(host, belief.name):
                    rules.broken("crash", f"{belief.name!r} has {belief.token!r} of a process that was killed")


def _calls(host: Host, entries: list[Entry]) -> list[bytes]:
    """Return the calls that a keeper sends: the scripts as texts, because the server may have forgotten them."""
    scripts = [release.described(host.capability, keyed=False) for release in RELEASES]
    keeper = Server(None, {"scripts": scripts, "most": _MOST})  # type: ignore[arg-type]
    return [keeper._call(number, bodies, b"EVAL") for number, bodies in keeper.calls(entries)]
