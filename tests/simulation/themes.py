"""Histories that are about one mechanism only, so that what it takes to see a mistake in it meets often. Each is short.

A theme changes the settings that a tape has chosen. Its users do one thing, and what goes wrong is what belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.faults import interrupt_callers
from tests.simulation.operations import new_lock
from tests.simulation.scheduler import Dice
from tests.simulation.topologies import Cluster
from wheel_lock.errors import LockUnavailable
from wheel_lock.protocol.keys import hash_slot

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.programs import User
    from tests.simulation.world import Settings

_EVERY_S = 0.75
_BEHIND_S = 0.00005  # behind what a caller does, and before the turn in which that is handled
_CROWDED = ("exclusive", "fair", "semaphore", "read-write", "reentrant")
_KINDS = ("exclusive", "reentrant", "exclusive", "fair")
_OLD_S = 500  # uptime of a master that has not restarted
_NAMES = {"exclusive": "x", "reentrant": "r", "fair": "f", "read-write": "rw"}
_LATE = (("pause",), ("pause", "flush", "set clock"), ("restart", "evict", "set clock"), ("silence", "tamper"))
_OF_VOTES = (
    ("pause",),
    ("silence",),
    ("silence", "restart"),
    ("refuse connections", "pause"),
    ("tamper", "set clock"),
    ("evict", "flush"),
    ("interrupt", "stick"),
)
_OF_MASTERS = (("pause",), ("restart", "silence"), ("pause", "restart", "refuse connections"))
# Nothing but a wake-up brings a waiter of a theme to the server in time.
_PATIENT: dict[str, Any] = {
    "response_timeout_s": 5.0,
    "fallback_s": 5.0,
    "declare_keys": False,
    "max_held": None,
    "max_waiting": None,
    "min_replicas": 0,
}


# -- what its users do ---------------------------------------------------------------------------------------------------


async def _hold(user: User, lock: Any, holding: Any, terms: dict[str, Any], seconds: float) -> None:
    """Hold a lock that was granted for a while; it is released also if that is interrupted."""
    user.world.rules.holds(lock, holding, terms)
    try:
        await user.sleep(seconds)
    finally:
        if not user.world.over:
            await user.release(lock)


async def _take(
    kind: str,
    user: User,
    dice: Dice,
    limit: float | None,
    seconds: Callable[[], float],
    *,
    writes: bool = False,
) -> None:
    """Wait for a lock, and hold it for a while."""
    from tests.simulation.programs import NAMES

    holding, terms = user.new_holding(), {"timeout": 3.0}
    lock = new_lock(user, kind, NAMES[kind][0], holding, terms, writes=writes)
    if await user.acquire(lock, dice, waiting=(True, limit)):
        await _hold(user, lock, holding, terms, seconds())


async def _meet(kind: str, user: User, dice: Dice) -> None:
    """Want a lock when others want it, too, as jobs that are due at the same time; then all rest.

    The first one may hold it until the others have waited for so long that they poll rarely.
    """
    now = user.world.scheduler.now
    begin = now - now % _EVERY_S + _EVERY_S
    follows = user.world.settings.theme == "overtakings" and user.process.name == "p0"
    await user.sleep(begin - now + dice.pick([0.0, 0.001, 0.003, 0.007]) + 0.004 * follows)
    if follows:
        user.process.when_sent(partial(_hold_replies, user.process))
    if not dice.one_in(3):
        moment, long = dice.pick([0.001, 0.004, 0.012]), dice.one_in(2)
        await _take(
            *(kind, user, dice, None, lambda: 0.4 if long and user.world.scheduler.now < begin + 0.1 else moment),
            writes=kind == "read-write",
        )


def _hold_replies(process: Process) -> None:
    """Have messages overtake what is answered within a moment, which alone is held back."""
    for wire in [wire for link in process.links.values() for wire in link.wires if not wire.session.channels]:
        wire.hold(False, True)
        process.world.scheduler.after(0.015, partial(wire.hold, False, False))


async def _read_and_write(user: User, dice: Dice) -> None:
    """Read for a while, or want to write for a shorter one: readers that come meanwhile wait for that writer."""
    writes = dice.one_in(3)
    limit = dice.pick([0.01, 0.1, 0.3, 2.0]) if writes else None
    await _take("read-write", user, dice, limit, lambda: dice.pick([0.2, 0.4, 0.05]), writes=writes)
    await user.sleep(dice.pick([0.0, 0.1, 0.4]))


async def _work_in_rows(kind: str, user: User, dice: Dice) -> None:
    """Rest, and hold a lock several times in a row; an interruption ends the row.

    Some interrupt all who wait in their process as they release: what these have begun meanwhile is taken back.
    """
    world = user.world

    def seconds() -> float:
        held_s = dice.pick([0.01, 0.03, 0.1])
        if dice.one_in(4):
            user.process.after(held_s + _BEHIND_S, partial(interrupt_callers, user.process))
        return held_s

    await user.sleep(dice.pick([0.3, 0.6, 0.1]))
    for _ in range(4 + dice.below(5)):
        await _take(kind, user, dice, dice.pick([None, None, 0.01]), seconds)
        world.steps += 1


async def _crowd(kind: str, user: User, dice: Dice) -> None:
    """Take a lock again and again for a moment, as many do at once: who wakes whom is decided in moments."""
    from tests.simulation.programs import NAMES

    name, terms = dice.pick(NAMES[kind]), {"timeout": dice.pick([3.0, 1.0])}
    for _ in range(3 + dice.below(6)):
        holding = user.new_holding()
        lock = new_lock(user, kind, name, holding, terms, writes=kind == "read-write" and not dice.one_in(2))
        if await user.acquire(lock, dice):
            user.world.rules.holds(lock, holding, terms)
            # Permits are for several, so that callers wait only if they are held for longer.
            await user.sleep(dice.pick([0.3, 0.1, 0.05] if kind == "semaphore" else [0.05, 0.0, 0.005]))
            await user.release(lock)
        await user.sleep(dice.pick([0.2, 0.03, 0.0]))
        user.world.steps += 1


async def _force(kind: str, user: User, dice: Dice) -> None:
    """Release a lock by force."""
    from tests.simulation.programs import NAMES

    name = dice.pick(NAMES[kind])
    user.note("releases %s by force", name)
    await user.do(user.context.force_release(name, foreign=dice.one_in(2)))


async def _keep(user: User, dice: Dice) -> None:
    """Have a lock renewed for a while. Some processes stop with the grant on its way: until it is about to be over."""
    holding, terms, process = user.new_holding(), {"timeout": dice.pick([1.0, 0.5, 3.0])}, user.process
    lock = user.context.lock(f"of {user.name}", on_lost=holding.on_lost, **terms)
    share = dice.pick([0.0, 0.0, 0.98, 0.99])
    if share:
        process.when_sent(partial(process.pause, share * terms["timeout"]))
    if await user.acquire(lock, dice):
        if dice.one_in(3):  # with the reply to a renewal unread, until behind the deadline that it moves
            process.after(0.1 * terms["timeout"], partial(process.pause_in_turn, 0.8 * terms["timeout"]))
        await _hold(user, lock, holding, terms, dice.pick([3.0, 1.5]))


async def _elect(user: User, dice: Dice) -> None:
    """Hold a lock of a majority for a moment, or for longer than a timeout."""
    holding, terms = user.new_holding(), {"timeout": dice.pick([1.0, 0.5, 3.0])}
    lock = user.context.lock("x", on_lost=holding.on_lost, **terms)
    if dice.one_in(4):  # a round with a standstill
        user.process.pause_in_turn(dice.pick([1.5, 2.5]))
    if await user.acquire(lock, dice, waiting=(True, dice.pick([None, 2.0]))):
        await _hold(user, lock, holding, terms, dice.pick([0.05, 0.5, 1.5]))


async def _elect_and_stop(user: User, dice: Dice) -> None:
    """Hold a lock of two masters of three, and stop as one of these comes back empty: the third one has a free vote."""
    world, process, holding, terms = user.world, user.process, user.new_holding(), {"timeout": dice.pick([1.0, 3.0])}
    hosts = list(world.hosts)
    world.refuse(process.link(hosts.pop(dice.below(len(hosts)))), 0.3)
    lock = user.context.lock("x", on_lost=holding.on_lost, **terms)
    if await user.acquire(lock, dice):
        if all(host.up_s > _OLD_S for host in world.hosts):
            world.scheduler.note("%s starts empty", hosts[0].name)
            hosts[0].restart_empty()
            process.pause(0.9 * terms["timeout"])
        await _hold(user, lock, holding, terms, 0.1)


async def _elect_in_parts(user: User, dice: Dice) -> None:
    """Hold a lock of a majority. One master comes late, and another one falls silent, or is silent from the beginning.

    As the former grants its vote, unread, the process stops: the vote of the silent one ends meanwhile. Where there was
    none, that of the third one does.
    """
    world, process, timeout = user.world, user.process, dice.pick([1.0, 0.7])
    links = [process.link(host) for host in world.hosts]
    late, silent = links.pop(dice.below(len(links))), links.pop(dice.below(len(links)))
    late.reset()
    holding, terms = user.new_holding(), {"timeout": timeout}
    lock = user.context.lock(f"of {user.name}", on_lost=holding.on_lost, **terms)
    limit: float | None = 2.0
    if dice.one_in(2):
        world.refuse(late, timeout / 4)
    else:
        limit, late_s = None, 0.06 * timeout
        world.silence(late, False, True, late_s)
        world.silence(silent, False, True, 2 * timeout)
        until_read_s = late_s + dice.pick([0.001, 0.003, 0.005])
        world.scheduler.after(until_read_s, partial(process.pause_in_turn, 0.96 * timeout, late))
    if await user.acquire(lock, dice, waiting=(True, limit)):
        world.silence(silent, False, True, 2 * timeout)
        process.pause_in_turn(timeout * dice.pick([0.5, 0.4, 0.6]), late)
        await _hold(user, lock, holding, terms, 1.5 * timeout)
        silent.hold(False, False)


async def _several(user: User, dice: Dice) -> None:
    """Take several locks together."""
    await user.multi(dice)


async def _hold_many(user: User, dice: Dice) -> None:
    """Hold several locks, which are renewed together."""
    from tests.simulation.programs import NAMES

    holding, context = user.new_holding(), user.context
    found = await user.do(context.acquire_many(NAMES["exclusive"], 1.0, on_lost=holding.on_lost))
    holding.got.update(name for name, lock in dict.items(found) if lock)
    for lock in () if user.world.settings.looks_late else found.values():
        if lock is not None:
            user.world.rules.holds(lock, holding, {})
    await user.sleep(dice.pick([1.5, 3.0]))
    for _ in range(5 if user.world.settings.context["watch"] else 0):
        name = dice.pick(NAMES["exclusive"]).encode()
        server = user.world.host_of(name).server
        user.process.when_sent(
            partial(user.world.scheduler.after, dice.pick([0.0, 0.02]), partial(server.report, name))
        )
        await user.sleep(0.75)
    await user.do(context.release_many(found.values()))


async def _leave_alone(user: User, dice: Dice) -> None:
    """Hold locks of a bulk acquire at which nobody looks, or late."""
    holding, context = user.new_holding(), user.context
    names = [f"{user.name}:{number}" for number in range(2 + dice.below(5))]
    found = await user.do(context.acquire_many(names, dice.pick([1.0, 3.0]), on_lost=holding.on_lost))
    holding.got.update(name for name, lock in dict.items(found) if lock)
    await user.sleep(dice.pick([2.0, 0.5, 4.0]))
    if dice.one_in(3) and (lock := found[names[0]]) is not None:
        user.world.rules.holds(lock, holding, {})
    await user.do(context.release_many(found.values()))


async def _downgrade(user: User, dice: Dice) -> None:
    """Write, and then read."""
    from tests.simulation.programs import NAMES

    holding, terms = user.new_holding(), {"timeout": dice.pick([0.5, 1.0])}
    both = user.context.rw_lock(NAMES["read-write"][0], on_lost=holding.on_lost, **terms)
    writer = both.write()
    if await user.acquire(writer, dice, waiting=(True, dice.pick([None, 2.0]))):
        user.world.rules.holds(writer, holding, terms)
        await user.sleep(dice.pick([0.0, 0.3, 0.3]))
        if not dice.one_in(3):  # with the reply unread, until behind the deadline of the writer
            user.process.pause_in_turn(terms["timeout"] * dice.pick([0.8, 0.95]))
        reader = await user.downgrade(writer)
        await user.sleep(dice.pick([0.0, 0.3]))
        await user.release(reader)


async def _come_early(user: User, dice: Dice) -> None:
    """Want a lock whose server is not there yet."""
    limit = dice.pick([None, 2.0, 0.3, None, 1.0])
    if dice.one_in(3) and limit is not None:
        await _take_many_early(user, limit)
    else:
        await _take("exclusive", user, dice, limit, lambda: dice.pick([0.01, 0.1]))


async def _take_many_early(user: User, limit: float) -> None:
    from tests.simulation.programs import NAMES

    began, context, names = user.process.clock.now(), user.context, NAMES["exclusive"]
    try:
        found = await user.do(context.acquire_many(names, 3.0, blocking=True, blocking_timeout=limit))
    except LockUnavailable as error:
        took = user.process.clock.now() - began
        user.world.rules.refused(user.process.contexts[-1]._engine, names, limit, took, error)
        raise
    await user.do(context.release_many(found.values()))


async def _extend(user: User, dice: Dice) -> None:
    """Have a lock renewed for a while, and extend it by far more; no other caller wants it."""
    holding = user.new_holding()
    lock = user.context.lock(f"of {user.name}", 0.5, on_lost=holding.on_lost)
    if await user.acquire(lock, dice):
        user.world.rules.holds(lock, holding, {})
        with user.promised("an extension"):
            await user.sleep(dice.pick([0.3, 0.2, 0.5]))
            await user.do(lock.extend(4.0, replace_ttl=True))
            await user.sleep(dice.pick([1.0, 2.0]))
        await user.release(lock)


async def _follow_a_slot(user: User, dice: Dice) -> None:
    """Hold a lock whose slot moves. That is reported, so it is looked at where it was, and maybe renewed meanwhile.

    Some are released as their slot begins to leave.
    """
    world, holding, terms = user.world, user.new_holding(), {"timeout": 1.0, "max_renewals": dice.pick([20, 3])}
    kind = dice.pick(["exclusive", "read-write"])
    lock = new_lock(user, kind, f"of {user.name}", holding, terms, writes=False)
    if not await user.acquire(lock, dice):
        return
    world.rules.holds(lock, holding, terms)
    for _ in range(4):
        await user.sleep(dice.pick([0.6, 0.5, 0.9]))
        assert isinstance(world.topology, Cluster)
        world.topology.move(hash_slot(lock.name.encode()), dice.pick(world.topology.shards), dice.pick([0.0, 0.0, 0.1]))
    await user.release(lock)


async def _outlive_a_master(user: User, dice: Dice) -> None:
    """Extend a lock by far more than it takes a replica, which may not have it, to take over from a master that dies."""
    topology, holding, name = user.world.topology, user.new_holding(), f"of {user.name}"
    assert topology is not None
    shard = topology.shard_of(name.encode())
    lock = user.context.lock(name, 1.0, on_lost=holding.on_lost)
    for feed in () if shard.busy or dice.one_in(3) else shard.master.feeds:
        feed.hold(True)  # until that replica leads
    if await user.acquire(lock, dice):
        user.world.rules.holds(lock, holding, {})
        with user.promised("an extension"):
            await user.do(lock.extend(20.0))
            await user.sleep(dice.pick([0.1, 0.0, 0.5]))
            shard.fail_over(dice, dies=True)
            await user.sleep(15.0)
        await user.release(lock)


def _restart_between_phases(user: User, dice: Dice) -> None:
    """Have a master come back empty when it has granted its vote, as the fence is on its way to it; once in a history."""
    world, host, delay_s = user.world, dice.pick(user.world.hosts), dice.pick([0.0005, 0.0006, 0.0007])

    def restart() -> None:
        if all(each.up_s > _OLD_S for each in world.hosts):
            world.scheduler.note("%s starts empty", host.name)
            host.restart_empty()

    user.process.when_sent(partial(world.scheduler.after, delay_s, restart))


async def _write(kind: str, user: User, dice: Dice) -> None:
    """Hold a lock with a fence, and write as its holder; and go on when it was released, or is lost."""
    holding, terms = user.new_holding(), {"timeout": dice.pick([0.5, 1.0, 3.0])}
    terms |= dice.pick([{}, {"renew": False}])
    lock = new_lock(user, kind, _NAMES[kind], holding, terms | {"fencing": True}, writes=True)
    if user.world.settings.masters > 1 and dice.one_in(4):
        _restart_between_phases(user, dice)
    if not await user.acquire(lock, dice, waiting=(True, dice.pick([None, 2.0]))):
        return
    user.world.rules.holds(lock, holding, terms)
    lease = lock._own_or_latest()
    for _ in range(1 + dice.below(3)):
        await user.sleep(dice.pick([0.0, 0.05, 0.3, 0.7]))
        user.write(lease)
    with user.promised("a release"):
        await user.release(lock)
    await user.sleep(dice.pick([0.0, 0.05, 0.7]))
    user.write(lease)


# -- themes --------------------------------------------------------------------------------------------------------------


def _only(settings: Settings, action: Callable[..., Any], *faults: str, processes: int, users: int) -> None:
    settings.masters, settings.topology, settings.server_rates = 1, "", settings.server_rates[:1]
    settings.actions, settings.faults = (partial(partial, action),), faults
    settings.duration_s, settings.processes, settings.users = 4.0, processes, users
    settings.slow_processes = settings.late_replies = settings.direct = False
    settings.piece = settings.room = 0
    settings.context |= _PATIENT
    settings.constants = []


def crowds(settings: Settings, dice: Dice) -> None:
    """Many want the same lock for moments, and nothing goes wrong: each late wake-up shows."""
    _only(settings, partial(_crowd, dice.pick(_CROWDED)), processes=2 + dice.below(2), users=3 + dice.below(2))
    settings.slow_network, settings.duration_s = False, 2.0


def forced(settings: Settings, dice: Dice) -> None:
    """Locks of a crowd are released by force, while they change hands."""
    kind = dice.pick(_CROWDED)
    _only(settings, partial(_crowd, kind), processes=2, users=2)
    settings.actions += (settings.actions[0], partial(partial, partial(_force, kind)))
    settings.slow_network = True


def meetings(settings: Settings, dice: Dice) -> None:
    """Callers meet, and no other traffic makes up for what one of them misses. Messages overtake replies."""
    _only(settings, partial(_meet, dice.pick(("read-write", "exclusive", "semaphore"))), processes=3, users=1)
    settings.slow_network, settings.straggler, settings.duration_s = True, "p0", 15.0


def overtakings(settings: Settings, dice: Dice) -> None:
    """One waits for another, and for nobody else; a message that the lock is free overtakes the answer that it is not."""
    _only(settings, partial(_meet, "exclusive"), processes=2, users=1)
    settings.slow_network, settings.duration_s = False, 15.0


def readers(settings: Settings, dice: Dice) -> None:
    """Readers, and writers who give up."""
    _only(settings, _read_and_write, processes=2, users=2)


def interruptions(settings: Settings, dice: Dice) -> None:
    """Callers are interrupted, and nothing else goes wrong."""
    kind = dice.pick((*_KINDS, "several"))
    action = _several if kind == "several" else partial(_work_in_rows, kind)
    _only(settings, action, "interrupt", processes=2, users=3)
    settings.context["declare_keys"] = kind == "several"  # so that they are taken one by one
    settings.slow_network = dice.one_in(3)
    settings.calm_s = 0.3


def stops(settings: Settings, dice: Dice) -> None:
    """Processes stop while locks are renewed: between a request and its reply, or with the reply unread."""
    _only(settings, _keep, "pause", processes=2, users=2)
    settings.calm_s, settings.duration_s = 1.5, 8.0


def majorities(settings: Settings, dice: Dice) -> None:
    """Two processes want a lock of three masters, of which some are away, or come back empty; or one of the two stops."""
    _only(settings, _elect, *dice.pick(_OF_MASTERS), processes=2, users=1)
    settings.masters, settings.server_rates = 3, (1.0, 1.0, 1.0)
    settings.duration_s, settings.calm_s = 8.0, dice.pick([0.7, 1.5])
    settings.context["fallback_s"] = dice.pick([5.0, 0.5, 1.0])


def restarts(settings: Settings, dice: Dice) -> None:
    """The same, and one master after the other comes back empty; or one that has granted a vote, whose holder stops."""
    majorities(settings, dice)
    settings.faults, settings.calm_s, settings.duration_s = ("restart",), 0.3, 4.0
    if dice.one_in(3):
        settings.faults, settings.actions = (), (partial(partial, _elect_and_stop),)


def late_votes(settings: Settings, dice: Dice) -> None:
    """The same, and what is sent to a master, or what it answers, arrives when its round is over."""
    majorities(settings, dice)
    settings.faults = ("silence", "stick")
    settings.calm_s = 0.3


def standstills(settings: Settings, dice: Dice) -> None:
    """Processes hold locks of three masters, and stop while these come, and fall silent."""
    _only(settings, _elect_in_parts, processes=2, users=1)
    settings.masters, settings.server_rates = 3, (1.0, 1.0, 1.0)


def absences(settings: Settings, dice: Dice) -> None:
    """The server is not there yet when some who have a limit, and some who have none, want the same lock."""
    _only(settings, _come_early, processes=2, users=3)
    settings.absent_s, settings.duration_s = dice.pick([0.7, 0.3, 1.5]), 2.0


def robberies(settings: Settings, dice: Dice) -> None:
    """Several locks are granted together, the reply is lost, and one of them is taken by a stranger."""
    _only(settings, _several, "rob", processes=1, users=2)
    settings.calm_s = 1.0


def thefts(settings: Settings, dice: Dice) -> None:
    """A stranger takes one of several locks that are renewed together, or is said to, meanwhile: the others are held on."""
    said = dice.one_in(2)
    _only(settings, _hold_many, *(() if said else ("tamper",)), processes=1, users=1)
    settings.calm_s, settings.context["batch_size"] = 0.3, 500
    settings.context["watch"] = settings.slow_network = said


def downgrades(settings: Settings, dice: Dice) -> None:
    """Writers go on as readers, while they stop, or the network is silent, now and then."""
    _only(settings, _downgrade, *dice.pick(((), ("silence", "pause"), ("pause",))), processes=2, users=1)
    settings.calm_s = 1.5


def extensions(settings: Settings, dice: Dice) -> None:
    """Extensions, which are overtaken by renewals of connections that have broken."""
    _only(settings, _extend, "swallow", processes=1, users=4)
    settings.calm_s = 0.3


def moves(settings: Settings, dice: Dice) -> None:
    """Slots of a cluster move, while a look at a lock and its renewal are on their way to where it was."""
    _only(settings, _follow_a_slot, processes=2, users=2)
    settings.topology, settings.context["watch"] = "cluster", True
    settings.slow_network, settings.slowest_s = True, 0.2


def successions(settings: Settings, dice: Dice) -> None:
    """Masters die, with locks that no replica has got, and that nothing but the end of their connection brings to mind."""
    _only(settings, _outlive_a_master, processes=1, users=1 + dice.below(2))
    settings.topology, settings.duration_s = dice.pick(["cluster", "cluster", "sentinels"]), 2.0


def late_writers(settings: Settings, dice: Dice) -> None:
    """Holders write, also when they have lost their lock, where the server forgets, and its clock goes back."""
    _only(settings, partial(_write, dice.pick(list(_NAMES))), *dice.pick(_LATE), processes=2, users=1 + dice.below(2))
    settings.topology = dice.pick(["", "sentinels", "cluster"])
    if settings.topology:
        settings.faults = ("fail over", *settings.faults)
    settings.duration_s, settings.calm_s = 8.0, 0.7


def fences(settings: Settings, dice: Dice) -> None:
    """The same with three masters, whose clocks differ."""
    majorities(settings, dice)
    settings.actions = (partial(partial, partial(_write, dice.pick(["exclusive", "reentrant"]))),)
    settings.faults = dice.pick(_OF_VOTES)
    settings.calm_s = dice.pick([0.3, 0.7])


def left_alone(settings: Settings, dice: Dice) -> None:
    """Locks are held to which nothing happens but what befalls connections, the server, and the process."""
    faults = dice.pick((("cut",), ("reset", "silence"), ("restart",), ("flush", "reset"), ("pause", "stick")))
    _only(settings, _leave_alone, *faults, processes=1, users=2)
    settings.masters, settings.looks_late, settings.duration_s = 1, True, 10.0
    settings.context |= {"max_held": None, "watch": False, "batch_size": dice.pick([500, 500, 2])}


THEMES: dict[str, Callable[[Settings, Dice], None]] = {
    "crowds": crowds,
    "forced": forced,
    "meetings": meetings,
    "overtakings": overtakings,
    "readers": readers,
    "interruptions": interruptions,
    "stops": stops,
    "majorities": majorities,
    "restarts": restarts,
    "late votes": late_votes,
    "standstills": standstills,
    "absences": absences,
    "robberies": robberies,
    "thefts": thefts,
    "downgrades": downgrades,
    "extensions": extensions,
    "moves": moves,
    "successions": successions,
    "late writers": late_writers,
    "fences": fences,
}
