"""A world: servers, processes, users, faults and rules on one clock; a history of it from a seed, or from a tape."""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import wheel_lock.aio.call
import wheel_lock.engine.renewal.checks
import wheel_lock.engine.renewal.flow
import wheel_lock.engine.renewal.renewer
import wheel_lock.engine.requests.acquire_all
import wheel_lock.engine.requests.bulk
import wheel_lock.engine.requests.bulk_operations
import wheel_lock.engine.topology.cluster
import wheel_lock.engine.waiting.many
import wheel_lock.engine.waiting.wait_queue
import wheel_lock.locks.bulk
import wheel_lock.locks.handoff
import wheel_lock.locks.leader
import wheel_lock.net.connection
import wheel_lock.net.node
import wheel_lock.sync.call
from tests.simulation import direct, keepers, seams
from tests.simulation.faults import FAULTS, HARMLESS, HINDER_NO_RELEASE, OF_TOPOLOGIES, ONE_SERVER, WALL_CLOCK
from tests.simulation.hosts import Host
from tests.simulation.network import Link, SimulatedConnector, Wire
from tests.simulation.processes import Caller, Context, MajorityContext, Process
from tests.simulation.programs import ACTIONS, NAMES, OF_A_MAJORITY, PERMITS, RARE, User
from tests.simulation.rules import Rules
from tests.simulation.scheduler import Dice, Recorded, Scheduler, Tape
from tests.simulation.themes import THEMES, left_alone
from tests.simulation.topologies import TOPOLOGIES, Topology

_package = wheel_lock
_sync_call, _aio_call = wheel_lock.sync.call, wheel_lock.aio.call
_LONGEST_S = 6.0  # limit of a lock's time at a server, extensions included
_COLLECTIONS_S = 2.0, 4.0  # delays: after the last fault, and between two others as long as callers wait
_LIMIT_S = 25.0  # once faults have ended, every caller has its answer within this time
_HEARD_S = 0.5  # time in which replicas learn of an expiry
_REST_S = 8.5  # time in which every key expires: two timeouts, and the time that idle subscriptions last

# Which find the least in their time.
_OFTEN = (
    "meetings",
    "interruptions",
    "crowds",
    "crowds",
    "stops",
    "stops",
    "moves",
    "thefts",
    "restarts",
    "late votes",
    "late votes",
    "fences",
    "forced",
    "successions",
    "successions",
)

# Rare paths taken often: small values of constants, of which each seed takes some.
_SMALL: tuple[tuple[Any, str, tuple[float, ...]], ...] = (
    (_package.net.node, "MOST_UNANSWERED", (1, 2, 5)),
    (_package.net.node, "MOST_SUSPECTED", (1, 2)),
    (_package.net.node, "_REQUESTS_A_TURN", (1, 3)),
    (_package.net.connection, "_REPLIES_A_TURN", (1, 2)),
    (_package.net.connection, "_PUSHES_A_TURN", (1,)),
    (_package.net.connection, "MOST_QUEUED_BYTES", (1, 300)),
    (_package.net.connection, "_JOINED_BYTES", (1, 100)),
    (_package.net.connection, "_LARGE_BYTES", (50,)),
    (_package.engine.renewal.renewer, "CROWD", (1, 2)),
    (_package.engine.renewal.flow, "_DRAIN_CALLS", (1,)),
    (_package.engine.renewal.checks, "_CALLS", (1,)),
    (_package.engine.pacing, "_IN_VAIN", (1, 2)),
    (_package.engine.requests.bulk.BulkOperation, "most_in_flight", (1, 2)),
    (_package.engine.requests.bulk_operations, "LEASES_A_TURN", (1, 2)),
    (_package.engine.requests.bulk_operations, "_LOSSES_A_TURN", (1, 2)),
    (_package.engine.requests.acquire_all, "_MOST_TOGETHER", (2, 3)),
    (_package.locks.handoff, "PART", (1,)),
    (_package.engine.waiting.many, "_PART", (1, 2)),
    (_package.engine.waiting.wait_queue, "_IN_A_ROW", (1, 2)),
    (_package.locks.bulk, "_PART", (1, 2)),
    (_package.engine.requests.bulk_operations, "_BATCHES_MEANWHILE", (1,)),
    (_package.engine.waiting.wait_queue, "_CLOSE_AFTER_S", (0.01,)),
    (_package.engine.waiting.wait_queue, "_FIRST_LOOK_S", (0.01,)),
    (_package.engine.waiting.many, "_LOOK_EVERY_S", (0.02,)),
    (_package.locks.leader, "_AFTER_RESIGNATION_S", (0.01,)),
    (_package.engine.topology.cluster, "_GONE_S", (0.3,)),
    (_package.sync.call, "_CHECK_AFTER_S", (0.05,)),
    (_package.aio.call, "_CHECK_EVERY_S", (0.05,)),
)


@dataclass
class Settings:
    """What kind of world it is."""

    duration_s: float = 10.0
    masters: int = 1  # that are independent
    topology: str = ""  # a name of TOPOLOGIES, if it is one store of several servers
    processes: int = 2
    users: int = 2
    rates: tuple[float, ...] = (1.0,)
    server_rates: tuple[float, ...] = (1.0,)
    server_ahead_s: tuple[float, ...] = ()  # of independent masters: by how much their clocks differ from the first
    flagged: bool = True
    slow_network: bool = False
    slowest_s: float = 0.03  # of a message
    straggler: str = ""  # the process that alone has a slow network; all have one without it
    slow_processes: bool = False
    zombies: bool = False
    late_replies: bool = False
    extends: bool = False
    forgets: bool = False
    tasks: bool = False
    direct: bool = False
    piece: int = 0
    room: int = 0
    faults: tuple[str, ...] = ()
    calm_s: float = 2.0
    absent_s: float = 0.0  # until servers can be connected to
    actions: tuple[Any, ...] = ACTIONS
    theme: str = ""  # a name of THEMES, if the history is about one mechanism only
    looks_late: bool = False  # whether nobody looks at the leases of a bulk acquire before their locks are asked for
    least_block: int = 1  # leases of a block; no constant, because it makes nothing slow
    context: dict[str, Any] = field(default_factory=dict)
    constants: list[tuple[Any, str, float]] = field(default_factory=list)


def settings_from(draw: Callable[[], Dice]) -> Settings:
    """Return the settings that a tape chooses."""
    dice = draw()
    settings = Settings(
        duration_s=dice.pick([6.0, 10.0, 15.0]),
        processes=1 + dice.below(3),
        users=1 + dice.below(4),
        rates=tuple(dice.pick([1.0, 1.002, 0.998]) for _ in range(3)),
        flagged=not dice.one_in(4),
        slow_network=dice.one_in(2),
        slow_processes=dice.one_in(4),
        extends=dice.one_in(2),
    )
    settings.zombies = dice.one_in(2)
    dice = draw()
    settings.forgets = dice.one_in(5)
    settings.tasks = dice.one_in(2)
    settings.late_replies = dice.one_in(4)
    settings.piece = dice.pick([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3])
    settings.room = dice.pick([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60])
    settings.calm_s = dice.pick([2.0, 0.7, 0.3, 20.0])
    dice = draw()
    settings.masters, settings.topology = dice.pick([
        *[(1, ""), (1, "cluster"), (1, "sentinels"), (1, "cluster"), (1, "sentinels"), (1, "")],
        *[(1, ""), (5, ""), (3, "")],
    ])  # fmt: skip
    settings.server_rates = tuple(dice.pick([1.0, 0.996, 1.004]) for _ in range(settings.masters))
    dice = draw()
    settings.faults = tuple(
        name
        for name in FAULTS
        if name != WALL_CLOCK
        and dice.one_in(2)
        and not (settings.masters > 1 and name in ONE_SERVER)
        and name not in _others_faults(settings)
    )
    if dice.one_in(6):
        settings.faults = ()
    dice = draw()
    if dice.one_in(3):  # users of few kinds meet more often
        settings.actions = (dice.pick(ACTIONS), dice.pick(ACTIONS))
    if settings.masters > 1:  # which is more work for the simulation
        settings.actions = OF_A_MAJORITY
        settings.processes, settings.users = min(settings.processes, 2), min(settings.users, 2)
    if dice.one_in(3):
        settings.actions += RARE
    dice = draw()
    settings.context = {
        "batch_size": dice.pick([500, 1, 2]),
        "response_timeout_s": dice.pick([1.5, 5.0, 0.4]),
        "connect_timeout_s": dice.pick([2.0, 0.5]),
        "fallback_s": dice.pick([5.0, 0.5, 1.0]),
        "renewal_slack": dice.pick([1 / 4, 0.0, 0.5]),
        "watch": dice.one_in(3),
        "declare_keys": dice.one_in(6),
        "max_held": dice.pick([None, None, None, 3]),
        "max_waiting": dice.pick([None, None, None, 2]),
        "readable_owner": dice.one_in(6),
        "release_on_close": not dice.one_in(4),
        "min_replicas": dice.pick([0, 1]) if settings.topology else 0,
        "replica_timeout_s": dice.pick([1.0, 0.1]),
    }
    dice = draw()
    if dice.one_in(3):
        settings.direct = True
        settings.constants += direct.SMALL
    if dice.one_in(2):
        for module, name, values in _SMALL:
            if dice.one_in(4):
                settings.constants.append((module, name, dice.pick(values)))
            if not dice.left:
                dice = draw()
    if draw().one_in(3):  # also where nothing else goes wrong
        settings.faults += (WALL_CLOCK,)
    dice = draw()
    if dice.one_in(2):
        settings.theme = dice.pick((*THEMES, *_OFTEN))
        THEMES[settings.theme](settings, dice)
    if settings.masters > 1:
        dice = draw()
        settings.server_ahead_s = tuple(dice.pick([0.0, 0.0, 2.0, -2.0]) for _ in range(settings.masters))
    settings.least_block = 1 + draw().below(3)
    dice = draw()
    settings.looks_late = dice.one_in(2)
    if settings.masters == 1 and dice.one_in(13):
        settings.theme = "left alone"
        left_alone(settings, dice)
    return settings


def _others_faults(settings: Settings) -> Container[str]:
    """Return the faults that only other topologies have."""
    own = TOPOLOGIES[settings.topology].faults if settings.topology else ()
    return [name for name in OF_TOPOLOGIES if name not in own]


class World:
    """See above.

    Attributes:
        process, caller: What runs now.
        calm: Whether faults have ended, and users begin nothing new.
        over: Whether the history is over.
        mailbox: The texts of exported locks.
        many: The texts of locks that were exported together.
        steps: The actions of users and the faults so far.
    """

    def __init__(self, seed: int, recorded: Recorded | None = None) -> None:
        self.tape = Tape(seed, recorded)
        self.scheduler = Scheduler()
        self.settings = settings_from(self.tape.stream("world").draw)
        keepers.choose(self.settings, self.tape.stream("keeper").draw())
        self.rules = Rules(self.scheduler)
        self.rules.permits = {name.encode(): PERMITS for name in NAMES["semaphore"]}
        self.rules.fair = tuple(name.encode() for name in NAMES["fair"])
        self.rules.read_write = tuple(name.encode() for name in NAMES["read-write"])
        self.processes: list[Process] = []
        self.hosts: list[Host] = []
        self.topology: Topology | None = None
        self.process: Process = None  # type: ignore[assignment]
        self.caller: Caller | None = None
        self.calm = self.over = False
        self.mailbox: list[str] = []
        self.many: list[dict[str | bytes, str | None]] = []
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self._heals: list[Callable[[], object]] = []
        self._numbers = 0
        self._known: dict[object, int] = {}

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def number_of(self, item: object) -> int:
        """Return a number in place of an address."""
        return self._known.setdefault(item, len(self._known) + 1)

    def enter(self, process: Process) -> None:
        """From here on the code of that process runs, in the caller that runs now if that is one of its."""
        self.process = process
        caller = self.caller
        here = process.timer_here if caller is None or caller.process is not process else caller.here
        _sync_call._here = here  # type: ignore[assignment]
        _aio_call._here = process.aio_here

    def links_to(self, host: Host) -> list[Link]:
        return [link for process in self.processes for link in process.links.values() if link.host is host]

    def new_process(self) -> None:
        """Start a process with its users."""
        number = len(self.processes)
        process = Process(self, f"p{number}", self.settings.rates[number % len(self.settings.rates)])
        self.processes.append(process)
        self.new_context(process)
        for user in range(self.settings.users):
            self.new_user(process, task=self.settings.tasks and user % 2 == 0)

    def new_user(self, process: Process, *, task: bool) -> None:
        """Give a process one more user."""
        User(process, f"{process.name}u{process.users}", task=task)
        process.users += 1

    def new_context(self, process: Process) -> None:
        """Give a process a new context, which its users use from now on."""
        settings = self.settings
        process.contexts.append(
            MajorityContext(process, self.hosts, _LONGEST_S, **settings.context)
            if settings.masters > 1
            else Context(process, self.hosts[0].store, self._connector(process), **settings.context)
        )

    def _connector(self, process: Process) -> Any:
        if self.topology is None:
            return SimulatedConnector(process.link(self.hosts[0]))
        return self.topology.connector()

    def host_named(self, name: str) -> Host:
        assert self.topology is not None
        return next(host for host in self.topology.all_hosts if host.name == name)

    def host_of(self, key: bytes) -> Host:
        """Return the server that has a key, of one store."""
        return self.hosts[0] if self.topology is None else self.topology.host_of(key)

    def heal_later(self, delay_s: float, heal: Callable[[], object]) -> None:
        """Have a fault end after a while, or when the world calms down."""
        self._heals.append(heal)
        self.rules.trouble(delay_s)
        self.scheduler.after(delay_s, heal)

    def silence(self, held: Link | Wire, requests: bool, replies: bool, seconds: float) -> None:
        """Hold back for a while what a link, or one connection, carries in these directions."""
        held.hold(requests, replies)
        self.heal_later(seconds, partial(held.hold, False, False))

    def refuse(self, link: Link, seconds: float) -> None:
        """Break all connections of a link, and make no new ones for a while."""
        link.refuses = True
        link.reset()
        self.heal_later(seconds, partial(setattr, link, "refuses", False))

    def _inject(self) -> None:
        dice = self.tape.stream("faults").draw()
        if self.calm or dice.nothing:
            return
        name = dice.pick(self.settings.faults)
        self.steps += 1
        self.faults[name] += 1
        pause_s = dice.up_to(self.settings.calm_s)
        if name not in HARMLESS:
            self.rules.trouble(0.0, hinders=name not in HINDER_NO_RELEASE)
        FAULTS[name](self, dice)
        self.scheduler.after(pause_s, self._inject)

    # -- a history ---------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Let a whole history happen, and check it."""
        with seams.simulated(self):
            try:
                self._live()
            finally:
                self.over = True
                for process in self.processes:
                    self.enter(process)
                    process.end()

    def _live(self) -> None:
        settings, scheduler = self.settings, self.scheduler
        if settings.topology:
            self.topology = TOPOLOGIES[settings.topology](self)
        else:
            ahead_s = settings.server_ahead_s or (0.0,)
            for number, (rate, ahead) in enumerate(zip(settings.server_rates, ahead_s, strict=True)):
                self.hosts.append(Host(self, f"redis{number}", rate, flagged=settings.flagged, ahead_s=ahead))
        if settings.masters > 1:
            self.rules.trouble(float("inf"))  # no waiter is woken: each polls
        for _ in range(settings.processes):
            self.new_process()
        if settings.absent_s:
            for link in [link for process in self.processes for link in process.links.values()]:
                self.refuse(link, settings.absent_s)
        if settings.faults:
            scheduler.after(0.1, self._inject)
        broken = self.rules.violations.__len__
        scheduler.run(settings.duration_s, broken)
        self._calm_down()
        scheduler.run(scheduler.now + _LIMIT_S, lambda: broken() or self._all_done())
        if not broken() and not self._all_done():
            waiting = [caller.name for process in self.processes for caller in process.callers]
            waiting += [name for process in self.processes for name, task in process.tasks.items() if not task.done()]
            self.rules.broken("L1", f"of {waiting} some still wait {_LIMIT_S} s after the last fault")
        self._drop()
        scheduler.run(scheduler.now + _REST_S, broken)
        scheduler.run(scheduler.now + _LIMIT_S, lambda: broken() or not self._lasts())
        if not broken():
            self._check_what_is_left()
            self.rules.check()

    def _all_done(self) -> bool:
        return not any(process.paused or process.busy for process in self.processes if process.alive)

    def _calm_down(self) -> None:
        self.scheduler.note("calm")
        self.calm = True
        for heal in self._heals:
            heal()
        for process in self.processes:
            process.when_sent(None)
            process.pause_in_turn(0.0)
        self.scheduler.after(_COLLECTIONS_S[0], self._drop_while_waiting)

    def _drop_while_waiting(self) -> None:
        if not self._all_done():
            self._drop()
            self.scheduler.after(_COLLECTIONS_S[1], self._drop_while_waiting)

    def _drop(self) -> None:
        """Forget the locks that users have left to others, and collect."""
        for process in self.processes:
            for locks in (*process.lent, process.left):
                locks.clear()
        if any(engine.in_use for process in self.processes for engine in process.engines):
            self.collect()

    def collect(self) -> None:
        """Collect what callers have forgotten: some locks are in cycles."""
        gc.collect()
        for process in self.processes:
            process.run(lambda: None)

    def _lasts(self) -> bool:
        """Return whether a lock lasts, which may have been granted late, or the entry of a lost one for a keeper."""
        keys = [(host, key) for host in self.hosts for key in host.server.expires if not key.startswith(b"wheel_lock:")]
        last = max((host.moment_of(host.server.expires[key]) for host, key in keys), default=0.0)
        alive = [process for process in self.processes if process.alive]
        recorded = any(keepers.recorded(engine) for process in alive for engine in process.engines)
        return recorded or self.scheduler.now < last + _HEARD_S

    def _check_what_is_left(self) -> None:
        rules = self.rules
        for host in self.hosts:
            host.server.expire_due()
            keys = [
                key for key in host.server.data if not key.startswith((b"wheel_lock:fence:", b"wheel_lock:permits:"))
            ]
            rules.exercised["L1"] += 1
            if keys:
                rules.broken("L1", f"these keys are there although no lock is held: {keys}")
        for process in self.processes:
            if not process.alive:
                continue
            for context in process.contexts:
                rules.exercised["left"] += 1
                votes = context.votes
                if votes is not None and (votes.held or votes.leases.acquiring or votes.wait_queues.count):
                    rules.broken("left", f"{process.name} has something left at the engine that counts votes")
            for engine in process.engines:
                watched = engine.router._watched
                left = {
                    "watched": 0 if watched is None else len(watched._by_key),
                    "held": len(engine.leases.held),
                    "acquiring": engine.leases.acquiring,
                    "swaps": len(engine.leases.swaps),
                    "waiting": engine.wait_queues.count,
                    "queues": len(engine.wait_queues),
                    "on the direct path": len(engine.direct.claim),
                    "busy": engine.busy and not engine.closed,
                    "overdue": len(list(engine.overdue_leases())),
                    "recorded": keepers.recorded(engine),
                }
                if any(left.values()):
                    rules.broken("left", f"{process.name} has something left: {left}")

    @property
    def digest(self) -> str:
        """A short text that is the same for two histories in which the same has happened."""
        story = "\n".join(f"{at:.9f} {text % arguments}" for at, text, arguments in self.scheduler.story)
        return hashlib.sha256(self.tape.to_bytes() + story.encode()).hexdigest()[:16]


def history(seed: int, recorded: Recorded | None = None) -> World:
    """Let a history happen; return its world."""
    was_enabled = gc.isenabled()
    gc.disable()  # finalisers of cycles would run at moments that do not depend on the seed alone
    gc.collect()
    try:
        world = World(seed, recorded)
        world.live()
        return world
    finally:
        if was_enabled:
            gc.enable()
