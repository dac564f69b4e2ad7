"""What must never happen. The world knows the truth, because it runs the servers: beliefs of holders against spans of keys.

Each rule counts how often it was exercised: a rule that never had a chance has shown nothing.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.commands import ZSet
from tests.simulation.hand_overs import HandOvers
from tests.simulation.operations import CALLERS_TOKEN
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.loss_events import HeldBack, LoopCallback
from wheel_lock.errors import LossReason
from wheel_lock.lease import EXTENDING, Lease, State
from wheel_lock.net.sentinel import SentinelConnector
from wheel_lock.observe import LostEvent
from wheel_lock.options import lock_name
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import queue_keys
from wheel_lock.protocol.scripts import Script
from wheel_lock.quorum.lease import QuorumLease
from wheel_lock.runtime.tokens import TOKEN_CHARACTERS

if TYPE_CHECKING:
    from tests.simulation.hosts import Host
    from tests.simulation.processes import Process

_SAME_S = 1e-6  # two readings of one moment
_TICK_S = 0.01
_GRACE_S = 2 * _TICK_S  # in which a thread that could not run handles what it has missed
_LATE_S = 0.6  # by which a caller's limit may be passed
_MAJORITY = "a majority"  # in place of the name of a server
_WOKEN_S, _WOKEN_SOON_S = 0.3, 0.06  # where anything is slow, and elsewhere
_ORPHAN_S = 1.0
_LEFT_S = 0.2  # until a replaced master is left
_HEARD_S = 0.15  # in which a caller hears of its result
# The types whose waiters of one process are a queue. (So are those of reentrant locks; but who holds one does not wait.)
_IN_LINE = ("exclusive", "fenced")
_RECOVERY_S = 2.0
_LONGEST_S = 4.0  # for which the effects of a trouble may last: a timeout and more
_RECENT = 8  # leases that have ended, of which each look sees whether one has come back


def _texts(*chosen: Script) -> set[bytes]:
    """Return the texts and hashes of scripts, by which commands call them."""
    every = [*chosen, *(script.single.script for script in chosen if script.single is not None)]
    forms = [form for script in every for form in (script.plain, script.flagged, script.sharded)]
    return {text for form in forms for text in (form.sha1.encode(), form.source)}


_FORCED = _texts(scripts.FORCE_RELEASE)
_RELEASES = _texts(scripts.RELEASE, scripts.RELEASE_MANY)
# Queries change nothing, and a forced release names the holders that somebody has seen.
_UNCONCERNED = _FORCED | _texts(scripts.LOOK, scripts.LOOK_HOLDERS)
_UNCONFIRMED = _texts(scripts.ADOPT, scripts.SWAP_HOLDER)  # what they grant is not waited for at replicas
_READS = (b"GET", b"EXISTS", b"HEXISTS")

RULES = {
    "S1": "a belief lies within what the server said",
    "S2": "no two beliefs exclude one another",
    "S3": "fences grow",
    "S4": "a command changes its own token only",
    "S5": "a loss is told once, by the deadline, and is final",
    "S6": "nothing is sent for a token after its release returned",
    "L1": "when faults end every name is free within two timeouts",
    "permits": "no more permits are held than there are",
    "readers": "a writer holds a lock alone",
    "fair": "the first waiter of a fair lock is granted first",
    "order": "waiters of one process get a lock in the order in which they came",
    "wake-up": "a released lock is granted to a waiter at once, when nothing is wrong",
    "expiry": "no key is without an expiry",
    "replaced": "nothing is believed of a master that Sentinels have told the holder to be replaced",
    "copies": "a grant that waits for replicas is at so many of them",
    "limits": "an acquire ends by its caller's limit, and a lease by its own",
    "orphan": "a grant that nobody waits for is released at once, when nothing is wrong",
    "hand-over": "an adopted lease has the hold limit of the exported one, whatever wall clocks show",
    "leader": "there is one leader at a time",
    "fork": "a forked child holds nothing, and sends nothing for what its parent holds",
    "kept": "no lease is lost without a cause",
    "released": "a release that returns has released",
    "left": "nothing is left in keys, requests and registries",
    "hot loop": "no thread turns for nothing",
    "internal failure": "no code of the library fails",
    "callers": "no public method raises what it does not promise",
}


class Broken(Exception):
    """A history that breaks a rule."""


@dataclass
class Span:
    """The server says that a key belongs to a token.

    Attributes:
        promised: Until when it said so, which is later than ``end`` if a stranger took the key away.
        place: Who says so: the store, or a server that speaks for it no more.
        tampered: Whether a stranger has changed it, or a failover.
        copies: The servers that have got it as replicas.
        released: Whether it ended by a command about the token.
    """

    start: float
    end: float
    promised: float
    place: str = ""
    tampered: bool = False
    copies: set[str] = field(default_factory=set)
    released: bool = False


@dataclass(eq=False)
class Belief:
    """A holder believes in a lease, from its grant on."""

    lease: Lease
    process: Process
    name: bytes
    token: bytes
    kind: str
    start: float
    until: float = 0.0
    deadline: float = 0.0  # the same, by the clock of its process
    open: bool = True
    host: str = ""
    let_go: bool = False


@dataclass(eq=False)
class Wait:
    """A caller waits to be woken; those of one ``queue``, unless that is None, are granted the lock in their order."""

    process: Process
    name: bytes
    since: float
    queue: Any


@dataclass(eq=False)
class Holding:
    """What one acquire of a caller got, and the losses that it was told of, by name.

    Attributes:
        interrupted: Whether the acquire, or what came behind it, was interrupted.
        stops: How often its process had been stopped before.
    """

    process: Process
    told: Counter[str | bytes] = field(default_factory=Counter)
    told_at: dict[str | bytes, float] = field(default_factory=dict)
    got: set[str | bytes] = field(default_factory=set)
    interrupted: bool = False
    stops: int = 0

    def on_lost(self, event: LostEvent) -> None:
        self.process.world.rules.told(self, event)


class Rules:
    """The rules, and the record that they are checked on."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.violations: list[tuple[float, str, str]] = []
        self.exercised: Counter[str] = Counter(dict.fromkeys(RULES, 0))
        self.failure: BaseException | None = None
        self._spans: dict[tuple[str, bytes, bytes], list[Span]] = defaultdict(list)
        self._known: dict[tuple[str, bytes], dict[bytes, Span]] = defaultdict(dict)
        self._queues: dict[tuple[str, bytes], dict[bytes, float]] = {}
        self._lapsed: set[bytes] = set()  # waiters that have lost their place, or have it again
        self._active: dict[Process, dict[Lease, Belief]] = defaultdict(dict)
        self._ended: dict[Process, list[Belief]] = defaultdict(list)
        self._beliefs: list[Belief] = []
        self._begun: set[Lease] = set()
        self._believed: set[bytes] = set()
        self._holdings: list[tuple[Lease, Holding, dict[str, Any]]] = []
        self._all_told: dict[Holding, None] = {}
        self._released: dict[bytes, float] = {}
        self._of_majority: set[bytes] = set()
        self._handed_over: set[bytes] = set()
        self._unconfirmed: set[bytes] = set()
        self._named: dict[Engine, tuple[tuple[Any, ...], float]] = {}
        self._free_since: dict[tuple[str, bytes], float] = {}  # of the locks that were released
        self._waiters: dict[Wait, None] = {}  # in the order in which they came
        self.trouble_until = 0.0  # from then on nothing is wrong
        self._tampering = False
        self.tampered: set[bytes] = set()  # the names that a stranger has changed
        self.fair: tuple[bytes, ...] = ()
        self.clocks_went_back = False
        self.fences_lost = False
        self.candidates: list[tuple[Process, Any]] = []  # who stands, or has stood, for election
        self.hand_overs = HandOvers(self)
        self._parents: dict[bytes, float] = {}  # tokens of forked parents, and when they forked

    @property
    def now(self) -> float:
        return self._scheduler.now  # type: ignore[no-any-return]

    def broken(self, rule: str, text: str, error: BaseException | None = None) -> None:
        """Note that a rule is broken."""
        self.violations.append((self.now, rule, text))
        self._scheduler.note("RULE %s BROKEN: %s", rule, text)
        self.failure = self.failure or error

    # -- the servers' side -------------------------------------------------------------------------------------------

    @contextmanager
    def tampering(self) -> Iterator[None]:
        """What changes meanwhile is changed by a stranger, who follows no rules."""
        self._tampering = True
        try:
            yield
        finally:
            self._tampering = False

    def keys_changed(self, host: Host, keys: list[bytes], words: list[bytes]) -> None:
        """A command has changed keys of a server."""
        tampering = self._tampering or (len(words) > 1 and words[1] in _FORCED)
        for key in keys:
            if key.startswith(b"wheel_lock:"):
                self._companion_changed(host, key)
            else:
                self._lock_changed(host, key, words, tampering)
        for name in self.fair:
            if name in keys or any(key in keys for key in queue_keys(name)):
                # In the order in which they came, whatever places the server gives them.
                place, queue, now_ms = host.place(name), dict(_queue(host, name)), host.server.now_ms
                came = self._queues.get((place, name), {})
                self._lapsed.update(waiter for waiter, expiry in came.items() if expiry <= now_ms)
                self._queues[place, name] = {waiter: queue[waiter] for waiter in (*came, *queue) if waiter in queue}

    def copied(self, replica: Host, keys: list[bytes]) -> None:
        """A replica has got keys of its master."""
        for key in keys:
            for token in self._holders(replica, key):
                spans = self._spans.get((replica.store, key, token))
                if spans:
                    spans[-1].copies.add(replica.name)

    def failed_over(self, old: Host, new: Host) -> None:
        """A replica speaks for the store now. What it has not got is lost; the former master goes on with what it has."""
        keys: dict[bytes, None] = {}
        for (place, key), known in list(self._known.items()):
            if place != new.store or not new.is_of_store(key):
                continue
            keys[key] = None
            if old.alive:
                mine = self._known[old.name, key]
                for token, span in known.items():
                    mine[token] = Span(span.start, span.end, span.promised, old.name)
                    self._spans[old.store, key, token].append(mine[token])
        keys.update(dict.fromkeys(key for key in new.server.data if new.is_of_store(key)))
        if new.ahead_s != old.ahead_s:  # and the last fence may be lost
            self.clocks_went_back = self.fences_lost = True
        with self.tampering():
            for key in keys:
                if not key.startswith(b"wheel_lock:"):
                    self._lock_changed(new, key, [], True)
        for name in self.fair:
            if new.is_of_store(name):
                self._queues[new.store, name] = dict(_queue(new, name))

    def moved(self, source: Host, target: Host, key: bytes) -> None:
        """A key has moved: if the clocks differ, what is in it lasts for another time than was promised."""
        if source.ahead_s != target.ahead_s and not key.startswith(b"wheel_lock:"):
            with self.tampering():
                self._lock_changed(target, key, [], True)

    def stepped_down(self, old: Host) -> None:
        """A former master says nothing any more."""
        for place, key in list(self._known):
            if place == old.name:
                for span in self._known.pop((place, key)).values():
                    span.end = min(span.end, self.now)

    def _companion_changed(self, host: Host, key: bytes) -> None:
        data = host.server.data
        if key in data and key not in host.server.expires and not key.startswith(b"wheel_lock:permits:"):
            self.broken("expiry", f"the key {key!r} has no expiry")
        self.exercised["expiry"] += 1

    def _lock_changed(self, host: Host, key: bytes, words: list[bytes], tampering: bool) -> None:
        if key not in host.server.data and any(each.server.has(key) for each in host.others_of_store(key)):
            return  # a node that a slot leaves removes a key that has expired there, and the next one has it anew
        now, place = self.now, host.place(key)
        known = self._known[place, key]
        there, was_held = self._holders(host, key), any(span.end > now + _SAME_S for span in known.values())
        if key in host.server.data and key not in host.server.expires and not tampering:
            self.broken("expiry", f"the key {key!r} has no expiry after {_shown(words)}")
        if tampering:
            self.tampered.add(key)
        released = False
        for token, span in list(known.items()):
            end = there.get(token)
            if span.end <= now or end is None:
                if span.end > now + _SAME_S:
                    self._touched(words, key, token)
                    span.end, span.tampered, span.released = now, tampering, token in words
                    if not tampering:
                        self._shortened(host, key, token, now)
                    released = released or token in words
                self._check_orphan(host, key, token, span)
                del known[token]
            elif end != span.end:
                if end < span.end or not isinstance(
                    host.server.data[key], ZSet
                ):  # whose members share the key's expiry
                    self._touched(words, key, token)
                self._scheduler.note("%s: %s of %s now lasts until %.3f", host.name, key, token, end)
                span.end, span.tampered = end, span.tampered or tampering
                shorter, span.promised = end < span.promised, max(span.promised, end) if tampering else end
                if shorter and not span.tampered:
                    self._shortened(host, key, token, end)
        for token, end in there.items():
            if token not in known and end > now:
                span = known[token] = Span(now, end, end, place)
                self._spans[host.store, key, token].append(span)
                self._scheduler.note("%s: %s belongs to %s until %.3f", host.name, key, token, end)
                if len(words) > 1 and words[1] in _UNCONFIRMED:
                    self._unconfirmed.add(token)
                if was_held and not (key in self.permits or isinstance(host.server.data[key], ZSet)):
                    self._handed_over.add(token)
                else:
                    self._check_order(host, key, token)
                    if not was_held:
                        self._check_wake_up(host, key)

        if known:
            self._free_since.pop((place, key), None)
        elif was_held and released:
            self._free_since[place, key] = now

    def _check_wake_up(self, host: Host, key: bytes) -> None:
        """A lock is granted that was free: not long after it was released, if there were waiters."""
        free_since = self._free_since.get((host.place(key), key))
        if free_since is None or free_since < self.trouble_until or self._tampering:
            return
        waits = [wait for wait in self._waiters if wait.name == key and wait.since < free_since and wait.process.alive]
        if waits:
            self.exercised["wake-up"] += 1
            settings = waits[0].process.world.settings
            slow = settings.slow_network or settings.slow_processes or settings.piece or settings.constants
            # For 100 ms it may be the turn of readers that have gone.
            slow = slow or (isinstance(host.server.data[key], ZSet) and key not in self.permits)
            limit_s = _WOKEN_S if slow else _WOKEN_SOON_S
            if slow and settings.topology:  # to find a server, and to subscribe there, may take several attempts
                limit_s += settings.context["fallback_s"]
            if self.now > free_since + limit_s:
                took_s = self.now - free_since
                self.broken("wake-up", f"{key!r} was free for {took_s:.3f} s, while somebody waited for it")

    @contextmanager
    def waiting(self, process: Process, lock: Any) -> Iterator[Wait]:
        """Somebody waits to be woken."""
        in_line = isinstance(lock._engine, Engine) and lock._lock_type.name in _IN_LINE
        queue = (lock._engine, lock.name) if in_line else None
        wait = Wait(process, lock.name.encode(), self.now, queue)
        self._waiters[wait] = None
        try:
            yield wait
        finally:
            self._waiters.pop(wait, None)

    def granted(self, wait: Wait) -> None:
        """A waiter got the lock, so those that came before it must have got it, or have given up."""
        in_line = [other for other in self._waiters if wait.queue is not None and other.queue == wait.queue]
        self.exercised["order"] += len(in_line) > 1
        for other in itertools.takewhile(lambda other: other is not wait, in_line):
            # That one may be about to hear of its own end.
            stops = len(wait.process.stops)
            self._scheduler.after(_HEARD_S, partial(self._check_order_of_waiters, wait, other, stops))

    def _check_order_of_waiters(self, wait: Wait, other: Wait, stops: int) -> None:
        if other in self._waiters and wait.process.alive and len(wait.process.stops) == stops:
            self.broken(
                "order", f"{wait.name!r} was granted to one who came at {wait.since:.4f}, before {other.since:.4f}"
            )

    def trouble(self, seconds: float) -> None:
        """Something goes wrong for so many seconds, and takes a while to recover."""
        self.trouble_until = max(self.trouble_until, self.now + seconds + _RECOVERY_S)

    def _holders(self, host: Host, key: bytes) -> dict[bytes, float]:
        """Return the tokens that a key belongs to, each with the moment of its expiry."""
        value = host.server.data.get(key)
        if value is None:
            return {}
        when = host.server.expires.get(key)
        end = float("inf") if when is None else host.moment_of(when + 1)
        if isinstance(value, bytes):
            return {value: end}
        if isinstance(value, ZSet):
            return {
                member: min(host.moment_of(abs(score)), end)
                for member, score in value.items()
                if member[:2] in (b"r:", b"w:", b"p:")
            }
        return dict.fromkeys(value, end)

    def _touched(self, words: list[bytes], key: bytes, token: bytes) -> None:
        self.exercised["S4"] += 1
        if not self._tampering and token not in words:
            self.broken("S4", f"{_shown(words)} changed {key!r}, which belongs to {token!r}")

    def _check_orphan(self, host: Host, key: bytes, token: bytes, span: Span) -> None:
        """A token leaves its key: if nobody has ever believed in it, it was not there for long."""
        if self.trouble_until > span.start or span.tampered or token == b"stranger":
            return
        if token in self._believed or token in self._handed_over or token.startswith(CALLERS_TOKEN):
            return
        self.exercised["orphan"] += 1
        if span.end > span.start + _ORPHAN_S:
            self.broken("orphan", f"{key!r} belonged to {token!r} for {span.end - span.start:.3f} s, and nobody knew")

    def _shortened(self, host: Host, key: bytes, token: bytes, end: float) -> None:
        """The server's promise ends sooner than it said: nobody may believe in more."""
        for process, beliefs in self._active.items():
            for lease, belief in beliefs.items():
                same = belief.token == token and belief.name == key and belief.host == host.place(key)
                if same and lease.is_valid(process.clock.now()) and belief.until > end + _SAME_S:
                    who = f"{process.name} believes in {key!r}"
                    self.broken("S1", f"{who} until {belief.until:.4f}, the server from now on {end:.4f}")

    def _check_order(self, host: Host, key: bytes, token: bytes) -> None:
        """A fair lock is granted to the first of those that wait."""
        queue = self._queues.get((host.place(key), key))
        now_ms = host.server.now_ms
        if not queue or self._tampering:
            return
        alive = [waiter for waiter, expiry in queue.items() if expiry > now_ms and waiter not in self._lapsed]
        me = token[:-TOKEN_CHARACTERS]
        if alive and me not in self._lapsed:
            self.exercised["fair"] += 1
            if alive[0] != me:
                self.broken("fair", f"{key!r} was granted to {me!r}, and {alive[0]!r} had come before")

    def command_arrives(self, words: list[bytes], sent_at: float) -> None:
        """A command has arrived at a server."""
        if words[0] in _READS or (len(words) > 1 and words[1] in _UNCONCERNED):
            return
        releases = len(words) > 1 and words[1] in _RELEASES
        for word in words:
            forked_at = self._parents.get(word)
            if forked_at is not None and sent_at > forked_at + _SAME_S:
                self.broken("fork", f"{_shown(words)} was sent for {word!r} of a parent")
            released_at = self._released.get(word)
            if releases and word in self._of_majority:
                continue  # the release of a majority returns before that of the rest
            if released_at is not None and sent_at > released_at + _SAME_S:
                self.broken("S6", f"{_shown(words)} was sent for {word!r} after its release had returned")

    # -- the holders' side -------------------------------------------------------------------------------------------

    def look(self, process: Process) -> None:
        """The process has done something: note what it believes from now on."""
        now, local = self.now, process.clock.now()
        active = self._active[process]
        for context in process.contexts:
            self._check_context(context)
            for host, engine in context.engines.items():
                if isinstance(engine.connector, SentinelConnector):
                    self._note_master(engine)
                on_path = engine.direct.young() if engine.direct is not None else ()
                for lease in (*engine.held, *on_path):
                    if lease not in active:
                        self._held(process, host, lease, local)
            if context.votes is not None:
                for lease in context.votes.held:
                    if lease not in active:
                        self._held(process, _MAJORITY, lease, local)
        for lease, belief in tuple(active.items()):
            if lease.is_valid(local):
                if lease.deadline != belief.deadline:
                    if now > belief.until + _SAME_S:
                        self.broken("S5", f"the lease of {belief.name!r} came back after {now - belief.until:.4f} s")
                    self._deadline_moved(belief, lease.deadline)
            else:
                belief.open = False
                belief.let_go = lease.state in (State.RELEASING, State.RELEASED, State.EXPORTED)
                belief.until = min(belief.until, now)
                del active[lease]
                self._ended[process].append(belief)
                self._scheduler.note(
                    "%s: believes no more in %s with %s: %s %s",
                    *(process.name, belief.name, belief.token, lease.state.name, lease.loss),
                )
        if self.candidates:
            self._check_leaders()
        for belief in self._ended[process][-_RECENT:]:
            if belief.lease.state <= EXTENDING and belief.lease.is_valid(local):
                self.broken("S5", f"the lease of {belief.name!r} with {belief.token!r} came back")

    def _held(self, process: Process, host: str, lease: Lease, local: float) -> None:
        """An engine has a lease among the held ones of which no belief is known."""
        if lease.is_valid(local):
            self._begin(process, host, lease)
        elif lease.state <= EXTENDING and lease.loss is None and lease not in self._begun:
            self.broken("S5", f"{lease.key!r} was granted {local - lease.deadline:.4f} s after its deadline")

    def _begin(self, process: Process, host: str, lease: Lease) -> None:
        kind: str = lease.group.lock_type.name  # type: ignore[attr-defined]
        belief = Belief(lease, process, lease.key, lease.token, kind, self.now, host=host)
        self._deadline_moved(belief, lease.deadline)
        self._check_copies(belief)
        self._active[process][lease] = belief
        self._begun.add(lease)
        self._believed.add(belief.token)
        self._beliefs.append(belief)
        self._scheduler.note(
            "%s: believes in %s with %s until %.3f", process.name, lease.key, lease.token, belief.until
        )

    def _check_copies(self, belief: Belief) -> None:
        """A holder believes in a grant: so many replicas as its context waits for must have got it."""
        least = belief.process.world.settings.context["min_replicas"]
        if least and belief.token not in self._unconfirmed:
            self.exercised["copies"] += 1
            spans = self._spans.get((belief.host, belief.name, belief.token), ())
            copies: set[str] = set().union(*(span.copies for span in spans))
            taken_away = any(span.tampered and span.end <= self.now for span in spans)
            if len(copies) < least and not taken_away:
                self.broken("copies", f"{belief.name!r} was granted to {belief.token!r}, and no replica has it")

    def _deadline_moved(self, belief: Belief, deadline: float) -> None:
        """A holder believes in a new deadline: the server must have promised as much."""
        belief.deadline = deadline
        belief.until = until = belief.process.clock.moment_of(deadline)
        if isinstance(belief.lease, QuorumLease):
            self._check_votes(belief, belief.lease)
            return
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        latest = {span.place: span.promised for span in spans}
        promised = max(latest.values(), default=0.0)
        if until > promised + _SAME_S and not any(span.tampered for span in spans):
            who = f"{belief.process.name} believes in {belief.name!r}"
            self.broken("S1", f"{who} until {until:.4f}, the server says {promised:.4f}")
        self._check_master(belief, latest)

    def _note_master(self, engine: Engine) -> None:
        """Note since when an engine knows which server Sentinels call the master."""
        opinion = engine.connector.opinions.belief  # type: ignore[union-attr]
        if opinion is not None and self._named.get(engine, ((), 0.0))[0] != opinion.servers:
            self._named[engine] = opinion.servers, self.now

    def _check_master(self, belief: Belief, promises: dict[str, float]) -> None:
        """A holder believes in a new deadline: not because of a master that it knows to be replaced."""
        process = belief.process
        for engine in [context.engines[belief.host] for context in process.contexts if belief.host in context.engines]:
            if engine not in self._named or belief.lease not in engine.leases.held:
                continue
            servers, since = self._named[engine]
            places = [place for place, promised in promises.items() if belief.until <= promised + _SAME_S]
            self.exercised["replaced"] += 1
            if (
                places
                and belief.host not in places
                and not any(server[0] in places for server in servers)
                and self.now > since + _LEFT_S
                and not any(end >= since for _, end in process.stops)
            ):
                who = f"{process.name} has known {servers} to be the master for {self.now - since:.3f} s"
                self.broken("replaced", f"{who}, and believes in {belief.name!r} because of {places}")

    def _check_votes(self, belief: Belief, lease: QuorumLease) -> None:
        """A holder believes in a majority: the masters must have promised it."""
        promises = []
        for vote in lease.votes:
            if vote.lease is not None:
                host = vote.node.connector.describe()
                spans = self._spans.get((host, belief.name, vote.lease.token), [])
                promises += [max(span.promised for span in spans)] if spans else []
        promises.sort(reverse=True)
        self.exercised["S1"] += 1
        promised = promises[lease.quorum - 1] if len(promises) >= lease.quorum else 0.0
        if belief.until > promised + _SAME_S:
            who = f"{belief.process.name} believes in {belief.name!r}"
            self.broken("S1", f"{who} until {belief.until:.4f}, a majority says {promised:.4f}")

    def _check_leaders(self, *known: Any) -> None:
        """Look for a second leader. ``known`` are candidates that say to be leaders.

        The others are not asked, for that would change something.
        """
        leaders = [
            f"{process.name} until {process.clock.moment_of(lease.deadline):.4f}"
            for process, candidate in self.candidates
            if process.alive
            and (leadership := candidate._leadership) is not None
            and not leadership._given_up
            and (lease := leadership._lock._own_or_latest()) is not None
            and lease.key not in self.tampered
            and not self._was_replaced(process, lease)
            and (candidate in known or lease.is_valid(process.clock.now()))
        ]
        self.exercised["leader"] += bool(leaders)
        if len(leaders) > 1:
            self.broken("leader", f"there are several leaders: {leaders}")

    def leads(self, candidate: Any) -> None:
        """A candidate says that it is the leader now."""
        self._check_leaders(candidate)

    def _check_context(self, context: Any) -> None:
        """A context keeps its limits."""
        for engine in (*context.engines.values(), *([context.votes] if context.votes is not None else [])):
            options, waiting = engine.options, engine.wait_queues.count if isinstance(engine, Engine) else 0
            if options.max_held is not None and len(engine.held) > options.max_held:
                self.broken("limits", f"{len(engine.held)} locks are held, and not {options.max_held}")
            if options.max_waiting is not None and waiting > options.max_waiting:
                self.broken("limits", f"{waiting} callers wait, and not {options.max_waiting}")

    def forked(self, process: Process) -> None:
        """A process has forked: what follows is the child, which believes in nothing."""
        self.trouble(0.0)  # what its parent is granted from now on is nobody's
        self._parents.update(dict.fromkeys([belief.token for belief in self._active[process].values()], self.now))
        self.died(process)
        self._active[process] = {}
        self._waiters = {wait: None for wait in self._waiters if wait.process is not process}
        self._holdings = [entry for entry in self._holdings if entry[1].process is not process]
        for holding in self._all_told:
            holding.interrupted = holding.interrupted or holding.process is process

    def died(self, process: Process) -> None:
        """A process was killed: it believes no more."""
        for belief in self._active.pop(process, {}).values():
            belief.open = False
            belief.until = min(belief.until, self.now)

    @property
    def _is_well(self) -> bool:
        """Whether nothing has been wrong for a while."""
        return self.trouble_until < self.now - _LONGEST_S

    def _check_cause(self, process: Process, event: LostEvent) -> None:
        """A lease was lost: for a reason that is true."""
        name = lock_name(event.name, b"")
        if not self._is_well or process.world.settings.slow_processes or name in self.tampered:
            return
        self.exercised["kept"] += 1
        if event.reason in (LossReason.NOT_CONFIRMED, LossReason.KEY_GONE, LossReason.TAKEN):
            self.broken("kept", f"{event.name!r} was lost ({event.reason}), and nothing was wrong")

    def told(self, holding: Holding, event: LostEvent) -> None:
        """A holder was told of a loss."""
        process = holding.process
        self.exercised["S5"] += 1
        self._all_told[holding] = None
        self._check_cause(process, event)
        self._scheduler.note("%s: told of the loss of %s: %s", process.name, event.name, event.reason)
        holding.told[event.name] += 1
        holding.told_at[event.name] = self.now
        if holding.told[event.name] > 1:
            self.broken("S5", f"the loss of {event.name!r} was told {holding.told[event.name]} times")
        # Who has begun to release, or has never been granted all that was asked for together, believes in nothing, so no
        # news can come too late.
        believed = any(
            not belief.let_go and belief.lease.name == event.name and _callback(belief.lease) == holding.on_lost
            for belief in (*self._ended[process], *self._active[process].values())
        )
        closed = event.reason is LossReason.CONTEXT_CLOSED
        if believed and not closed and event.at > self._told_by(process, event.deadline):
            self.broken(
                "S5", f"the loss of {event.name!r} was told {event.at - event.deadline:.3f} s after its deadline"
            )

    def _told_by(self, process: Process, deadline: float) -> float:
        """Return until when a loss must be told, by the clock of its process."""
        clock = process.clock
        moment = clock.moment_of(deadline)
        if not process.world.settings.slow_processes and not any(
            start <= moment and end >= moment - 3 * _TICK_S for start, end in process.stops
        ):
            return deadline
        turned_at = process.turned_at
        for _ in range(2):  # the first turn at or behind the deadline, and the first one 20 ms later
            place = bisect.bisect_left(turned_at, deadline)
            if place == len(turned_at):
                return float("inf")
            deadline = turned_at[place] + _GRACE_S
        return deadline - _GRACE_S

    def released(self, lease: Lease) -> None:
        """A release has returned."""
        self.exercised["S6"] += 1
        self._released[lease.token] = self.now
        if isinstance(lease, QuorumLease):
            self._of_majority.add(lease.token)
            return
        self.exercised["released"] += 1
        for (host, key, token), spans in self._spans.items():
            # Without its reply a release is repeated, and believes that it was the first try which found the lock.
            # A failover may bring it back, and a replaced master keeps it.
            if token != lease.token or any(span.released for span in spans):
                continue
            if self._is_well or any(span.end > self.now and span.place == host for span in spans):
                self.broken("released", f"{key!r} was released, and its key was still there, or had gone before")

    def holds(self, lock: Any, holding: Holding, terms: dict[str, Any]) -> None:
        """A caller has got a lock, on these terms."""
        lease = lock._own_or_latest()
        if lease is not None and _callback(lease) == holding.on_lost:  # else the caller had it already
            self._holdings.append((lease, holding, terms))
            holding.got.add(lease.name)
            self.look(holding.process)  # the caller may have acquired it without the timer's thread
            # A context may be closed in the turn of the grant, and its holder is told.
            if lease not in self._begun and lease.loss is not LossReason.CONTEXT_CLOSED:
                self.broken("S5", f"{lease.name!r} was granted, and was never held")

    def limit_kept(self, what: str, limit: float, took: float) -> None:
        """A call with a limit has ended. A try that waits for a connection takes half a second, even if less is left."""
        self.exercised["limits"] += 1
        if took > limit + _LATE_S:
            self.broken("limits", f"{what} took {took:.3f} s, its limit was {limit:.3f} s")

    # -- the end -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what can be checked at the end only."""
        for process, leases in self._active.items():
            local = process.clock.now()
            for belief in leases.values():
                if belief.open:
                    belief.until = min(belief.until, self.now)
                    lease = belief.lease
                    if lease.state <= EXTENDING and local > self._told_by(process, lease.deadline):
                        self.broken("S5", f"the loss of {belief.name!r} was never told")
        for belief in self._beliefs:
            self._check_belief(belief)
        for lease, holding, terms in self._holdings:
            self._check_limits(lease, terms)
            if lease.state is State.LOST and holding.process.alive and not holding.told[lease.name]:
                self.broken("S5", f"the loss of {lease.name!r} was not told")
        for holding in self._all_told:
            strange = [name for name in holding.told if name not in holding.got]
            if strange and not holding.interrupted and holding.process.alive:
                self.broken("S5", f"the loss of {strange} was told to a caller that never got it")
        by_name: dict[tuple[str, bytes], list[Belief]] = defaultdict(list)
        for belief in self._beliefs:
            by_name[belief.host, belief.name].append(belief)
        for (_, name), beliefs in by_name.items():
            self._check_overlaps(name, beliefs)
            self._check_fences(name, beliefs)

    def _check_limits(self, lease: Lease, terms: dict[str, Any]) -> None:
        max_renewals = 0 if terms.get("renew") is False else terms.get("max_renewals")
        max_hold = terms.get("max_hold")
        if isinstance(lease, QuorumLease):
            return  # whose votes may be requested again
        if max_renewals is not None and lease.renewals > max_renewals:
            self.broken("limits", f"{lease.name!r} was renewed {lease.renewals} times, and not {max_renewals}")
        if max_hold is not None and lease.deadline > lease.acquired_at + max_hold + _SAME_S:
            held_s = lease.deadline - lease.acquired_at
            self.broken("limits", f"{lease.name!r} was held for {held_s:.3f} s, and not {max_hold}")

    def _check_belief(self, belief: Belief) -> None:
        if belief.host == _MAJORITY:
            return
        self.exercised["S1"] += 1
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        begins = [span for span in spans if span.start <= belief.start + _SAME_S]
        if any(span.tampered for span in begins):
            begins = spans  # the key of a server whose clock goes forward and back has gone, and is there again
        if not any(belief.until <= span.promised + _SAME_S for span in begins):
            said = [(round(span.start, 4), round(span.promised, 4)) for span in spans]
            begun, until = round(belief.start, 4), round(belief.until, 4)
            self.broken(
                "S1", f"{belief.process.name} believed in {belief.name!r} {begun, until}, the server said {said}"
            )

    def _check_overlaps(self, name: bytes, beliefs: list[Belief]) -> None:
        permits = self.permits.get(name, 0)
        rule = "permits" if permits else "readers" if any(each.kind == "read" for each in beliefs) else "S2"
        moments = sorted(
            itertools.chain.from_iterable(
                ((each.start + _SAME_S, 1, number), (each.until, 0, number)) for number, each in enumerate(beliefs)
            )
        )
        there: dict[int, Belief] = {}
        for _, begins, number in moments:
            if not begins:
                there.pop(number, None)
                continue
            belief = beliefs[number]
            if belief.until <= belief.start + _SAME_S or not self._is_sound(belief):
                continue
            self.exercised[rule] += len(beliefs) > 1
            others = [each for each in there.values() if not self._was_tampered(each)]
            if permits:
                bad = len(others) >= permits
            else:
                bad = any(not (belief.kind == each.kind == "read") for each in others)
            if bad:
                shown = [(each.kind, each.process.name, round(each.start, 4), round(each.until, 4)) for each in others]
                mine = (belief.kind, belief.process.name, round(belief.start, 4), round(belief.until, 4))
                self.broken(rule, f"{name!r} was believed by {mine} and by {shown}")
            there[number] = belief

    permits: dict[bytes, int] = {}  # noqa: RUF012 - set for a history by its world

    def _is_sound(self, belief: Belief) -> bool:
        """Return whether a belief rests on what the store has said, and not on a server that has been replaced.

        What a stranger has taken away before the reply came is no ground either.
        """
        spans = self._spans.get((belief.host, belief.name, belief.token), ())
        return belief.host == _MAJORITY or any(
            span.place == belief.host
            and belief.until <= span.promised + _SAME_S
            and not (span.tampered and span.end <= belief.start)
            for span in spans
        )

    def _was_replaced(self, process: Process, lease: Lease) -> bool:
        """Return whether a master has granted the lease that its store had replaced."""
        stores = dict.fromkeys(host.store for host in process.world.hosts)
        return any(
            span.place != store for store in stores for span in self._spans.get((store, lease.key, lease.token), ())
        )

    def _was_tampered(self, belief: Belief) -> bool:
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        return any(span.tampered for span in spans)

    def _check_fences(self, name: bytes, beliefs: list[Belief]) -> None:
        fenced = [belief for belief in beliefs if belief.lease.fence is not None]
        fenced.sort(key=self._granted_at)
        if self.clocks_went_back and self.fences_lost:
            return  # a fence is the server's time if there is no greater one
        for earlier, later in itertools.pairwise(fenced):
            self.exercised["S3"] += 1
            before, after = earlier.lease.fence, later.lease.fence
            assert before is not None
            assert after is not None
            if after < before or (after == before and later.token not in self._handed_over):
                self.broken("S3", f"the fence of {name!r} was {before}, then {after}")

    def _granted_at(self, belief: Belief) -> float:
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        return max((span.start for span in spans if span.start <= belief.start + _SAME_S), default=belief.start)


def _callback(lease: Lease) -> Any:
    """Return the callback that a caller has given for the loss of a lease."""
    on_lost = lease.on_lost
    on_lost = on_lost.on_lost if isinstance(on_lost, HeldBack) else on_lost
    return on_lost.args[-1] if isinstance(on_lost, LoopCallback) else on_lost


def _queue(host: Host, key: bytes) -> list[tuple[bytes, float]]:
    """Return the waiters of a fair lock in order, each with its expiry in ms of the server's clock."""
    queue, alive = (host.server.data.get(each) for each in queue_keys(key))
    if not isinstance(queue, ZSet) or not isinstance(alive, ZSet):
        return []
    return [(waiter, alive.get(waiter, 0.0)) for waiter, _ in queue.ranked()]


_NAMES = {text: script.name for script in scripts.ALL for text in _texts(script)}


def _shown(words: list[bytes]) -> str:
    """Return a command for a person to read."""
    return " ".join(_NAMES.get(word, repr(word)[2:-1][:60]) for word in words) or "the server"
