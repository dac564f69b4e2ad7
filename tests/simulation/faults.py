"""What goes wrong. Each fault is one choice of the stream of faults; each seed switches a random half of the kinds off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.programs import NAMES, Interruption
from tests.simulation.scheduler import Dice
from tests.simulation.topologies import Cluster, Sentinels

if TYPE_CHECKING:
    from tests.simulation.hosts import Host
    from tests.simulation.network import Link
    from tests.simulation.processes import Process
    from tests.simulation.world import World

Fault = Callable[["World", Dice], None]
_REFUSALS = (
    "BUSY Redis is busy running a script.",
    "LOADING Redis is loading the dataset in memory",
    "NOREPLICAS Not enough good replicas to write.",
    "CLUSTERDOWN The cluster is down",
    "ERR something is wrong",
)


def _link(world: World, dice: Dice) -> Link | None:
    links = [link for process in world.processes if process.alive for link in process.links.values()]
    return dice.pick(links) if links else None


def _process(world: World, dice: Dice) -> Process | None:
    alive = [process for process in world.processes if process.alive]
    return dice.pick(alive) if alive else None


def _host(world: World, dice: Dice) -> Host:
    return dice.pick(world.hosts)


def _duration(dice: Dice) -> float:
    return dice.pick([0.1, 0.3, 0.7, 1.5, 3.0, 5.0])


def silence(world: World, dice: Dice) -> None:
    """Nothing arrives, in one direction or in both."""
    link = _link(world, dice)
    if link is not None:
        requests, replies = dice.pick([(False, True), (True, False), (True, True)])
        world.scheduler.note("%s is silent (requests: %s, replies: %s)", link.name, requests, replies)
        world.silence(link, requests, replies, _duration(dice))


def stick(world: World, dice: Dice) -> None:
    """One connection is silent, while others can be made and used."""
    link = _link(world, dice)
    if link is not None and link.wires:
        requests, replies = dice.pick([(True, False), (False, True), (True, True)])
        world.scheduler.note("a connection of %s is silent (requests: %s, replies: %s)", link.name, requests, replies)
        world.silence(dice.pick(link.wires), requests, replies, _duration(dice))


def refuse_connections(world: World, dice: Dice) -> None:
    """All connections break, and no new ones can be made."""
    link = _link(world, dice)
    if link is not None:
        world.scheduler.note("%s is down", link.name)
        world.refuse(link, _duration(dice))


def reset(world: World, dice: Dice) -> None:
    """All connections break."""
    link = _link(world, dice)
    if link is not None:
        world.scheduler.note("%s is reset", link.name)
        link.reset()


def cut(world: World, dice: Dice) -> None:
    """A connection breaks after a number of bytes."""
    link = _link(world, dice)
    if link is not None and link.wires:
        count = dice.pick([1, 3, 0, 10, 50, 200])
        world.scheduler.note("a connection of %s breaks after %d bytes", link.name, count)
        dice.pick(link.wires).cut_in(count)


def pause(world: World, dice: Dice) -> None:
    """A process is stopped for a while."""
    process = _process(world, dice)
    if process is not None:
        # Some end between the deadline of a lease and that of its renewal under way, some right behind the first deadline.
        seconds = dice.pick([0.1, 0.4, 0.8, 1.5, 2.5, 5.0, 0.495, 0.99])

        def stop() -> None:
            world.scheduler.note("%s is stopped for %s s", process.name, seconds)
            process.pause(seconds)

        when = dice.below(4)
        if when == 3 and world.settings.theme == "stops":
            process.pause_in_turn(seconds)
        elif when > 1:
            process.when_sent(stop)
        else:
            stop()


def kill(world: World, dice: Dice) -> None:
    """A process is killed; another one takes its place."""
    process = _process(world, dice)
    if process is not None and dice.one_in(3):
        world.scheduler.note("%s is killed", process.name)
        process.kill()
        world.new_process()


def pause_server(world: World, dice: Dice) -> None:
    """A server is stopped for a while."""
    host = _host(world, dice)
    if not host.paused:
        world.scheduler.note("%s is stopped", host.name)
        host.pause()
        world.heal_later(_duration(dice), host.resume)


def restart(world: World, dice: Dice) -> None:
    """A server is there again, empty."""
    if dice.one_in(4):
        host = _host(world, dice)
        if host.alive and not host.server.replica:
            world.scheduler.note("%s starts empty", host.name)
            host.restart_empty()


def flush_scripts(world: World, dice: Dice) -> None:
    """A server forgets its scripts."""
    host = _host(world, dice)
    world.scheduler.note("%s forgets its scripts", host.name)
    host.server.scripts.clear()


def refuse(world: World, dice: Dice) -> None:
    """A server refuses everything for a while, or all that writes."""
    server = _host(world, dice).server
    what = dice.below(8)
    if what < len(_REFUSALS):
        server.refusal = _REFUSALS[what]
    elif what == 5:
        server.out_of_memory = True
    elif what == 6:
        server.read_only = True
    else:
        server.misconfigured = True
    world.scheduler.note("the server refuses commands: %d", what)

    def heal() -> None:
        server.refusal = None
        server.out_of_memory = server.read_only = server.misconfigured = False

    world.heal_later(_duration(dice), heal)


def tamper(world: World, dice: Dice) -> None:
    """A stranger changes a key."""
    if dice.one_in(3):
        name = dice.pick([name.encode() for names in NAMES.values() for name in names])
        words = dice.pick([(b"DEL", name), (b"SET", name, b"stranger", b"PX", b"700"), (b"PEXPIRE", name, b"50")])
        world.scheduler.note("a stranger sends %s", b" ".join(words))
        host = world.host_of(name) if world.settings.masters == 1 else _host(world, dice)
        if host.alive:
            host.tamper(*words)


def interrupt(world: World, dice: Dice) -> None:
    """An exception is raised in a caller that waits, or in all of a process at once; now, or right behind a request."""
    process = _process(world, dice)
    if process is None:
        return
    number, everybody, behind = dice.below(64), dice.one_in(2), dice.one_in(2)
    delay_s = dice.pick([0.0, 0.0002, 0.005])

    interrupt_them = partial(interrupt_callers, process, None if everybody else number)
    if behind:
        process.when_sent(partial(world.scheduler.after, delay_s, interrupt_them))
    else:
        interrupt_them()


def interrupt_callers(process: Process, number: int | None = None) -> None:
    """Raise an exception in the callers of a process that wait: in one of them, or in all without a ``number``."""
    targets: list[tuple[str, Callable[[], object]]] = [
        (caller.name, partial(caller.interrupt, Interruption()))
        for caller in process.callers
        if caller.waits and not caller.background
    ]
    targets += [(name, task.cancel) for name, task in process.tasks.items() if not task.done()]
    if targets and process.alive:
        for name, raise_it in targets if number is None else [targets[number % len(targets)]]:
            process.world.scheduler.note("an interruption of %s", name)
            raise_it()
        if process.tasks:
            process.poke_loop()


def report(world: World, dice: Dice) -> None:
    """A server reports a change of a key that has not changed."""
    server = _host(world, dice).server
    for key in list(server.data):
        server.report(key)


def forge(world: World, dice: Dice) -> None:
    """Any user who may publish wakes all waiters of a server, several times in a tick."""
    server, gap_s = _host(world, dice).server, dice.pick([0.001, 0.003])
    for number in range(12):
        world.scheduler.after(number * gap_s, server.wake_all)


def fail_over(world: World, dice: Dice) -> None:
    """A replica takes over from its master, which dies, is cut off, or hands over."""
    assert world.topology is not None
    dice.pick(world.topology.shards).fail_over(dice)


def lag(world: World, dice: Dice) -> None:
    """A replica gets nothing for a while."""
    assert world.topology is not None
    world.topology.lag(dice)


def move_a_slot(world: World, dice: Dice) -> None:
    """A slot of a cluster moves, key by key."""
    assert isinstance(world.topology, Cluster)
    world.topology.move_a_slot(dice)


def isolate_sentinel(world: World, dice: Dice) -> None:
    """A Sentinel goes on saying what it knew."""
    assert isinstance(world.topology, Sentinels)
    world.topology.isolate_sentinel(dice)


def collect(world: World, dice: Dice) -> None:
    """The garbage collector comes, in the middle of whatever callers wait for."""
    if dice.one_in(8):
        world.scheduler.note("the collector comes")
        world.collect()


def set_clock(world: World, dice: Dice) -> None:
    """The clock of a server is set to another time. It promises nothing for the keys that are there."""
    if dice.one_in(3):
        host, ahead_s = _host(world, dice), dice.pick([1.5, 0.0, -0.7, 0.3])
        world.scheduler.note("the clock of %s is %.1f s ahead now", host.name, ahead_s)
        host.set_clock(ahead_s)


def set_wall_clock(world: World, dice: Dice) -> None:
    """The wall clock of a process is set to another time. Its monotonic clock goes on."""
    process, ahead_s = _process(world, dice), dice.pick([5.0, -5.0, 0.0, -0.7, 0.7, -3600.0])
    if process is not None:
        world.scheduler.note("the wall clock of %s is %.1f s ahead now", process.name, ahead_s)
        process.wall_ahead_s.append((world.scheduler.now, ahead_s))


def swallow(world: World, dice: Dice) -> None:
    """A proxy takes the next requests of a connection, which breaks, and sends them on later."""
    link = _link(world, dice)
    if link is not None and link.wires:
        later_s = dice.up_to(2.0)
        world.scheduler.note("a connection of %s breaks with its next requests: %.3f s later", link.name, later_s)
        dice.pick(link.wires).break_with_requests(later_s)


def evict(world: World, dice: Dice) -> None:
    """A server that is short of memory drops the last fence of a name."""
    server = _host(world, dice)
    fences = [key for key in server.server.data if key.startswith(b"wheel_lock:fence:")]
    if fences and server.alive and not server.server.replica:
        key = dice.pick(fences)
        world.scheduler.note("%s evicts %s", server.name, key)
        server.forget(key)


def flush(world: World, dice: Dice) -> None:
    """Somebody empties a server."""
    host = _host(world, dice)
    if host.server.data and host.alive and not host.server.replica and dice.one_in(4):
        world.scheduler.note("%s is flushed", host.name)
        host.forget(*host.server.data)


def rob(world: World, dice: Dice) -> None:
    """A stranger takes one of several locks that were just granted together, of which the holder has not heard yet."""
    host = _host(world, dice)
    if host.alive and not host.server.replica:
        host.robs = True


ONE_SERVER = ("tamper", "set clock", "rob", "evict", "flush")  # on several masters at once these let two hold a lock

WALL_CLOCK = "set wall clock"
HARMLESS = ("interrupt", "report", "forge", WALL_CLOCK)  # nothing else may go wrong because of one of them
# Faults that hinder no clean-up of unawaited grants; a connection of its own breaks for a moment at most.
HINDER_NO_RELEASE = (*HARMLESS, "collect", "tamper", "rob", "evict", "flush", "kill", "flush scripts")

OF_TOPOLOGIES = ("fail over", "lag", "move a slot", "isolate a sentinel")

FAULTS: dict[str, Fault] = {
    "silence": silence,
    "stick": stick,
    "refuse connections": refuse_connections,
    "reset": reset,
    "cut": cut,
    "pause": pause,
    "kill": kill,
    "pause server": pause_server,
    "restart": restart,
    "flush scripts": flush_scripts,
    "refuse": refuse,
    "tamper": tamper,
    "interrupt": interrupt,
    "report": report,
    "forge": forge,
    "fail over": fail_over,
    "lag": lag,
    "move a slot": move_a_slot,
    "isolate a sentinel": isolate_sentinel,
    "collect": collect,
    "set clock": set_clock,
    WALL_CLOCK: set_wall_clock,
    "rob": rob,
    "evict": evict,
    "flush": flush,
    "swallow": swallow,
}
