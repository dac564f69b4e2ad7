"""What servers may never do, and what must follow from what they did: the rules that see commands and keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.network import LATE_S
from tests.simulation.operations import CALLERS_TOKEN
from tests.simulation.record import SAME_S, Belief, Free, Record, Span, Wait
from tests.simulation.server import ZSet
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import permits_key, queue_keys
from wheel_lock.protocol.scripts import Script
from wheel_lock.runtime.tokens import TOKEN_CHARACTERS

if TYPE_CHECKING:
    from tests.simulation.hosts import Host
    from tests.simulation.network import Wire
    from tests.simulation.processes import Process

_WOKEN_S, _WOKEN_SOON_S = 0.3, 0.06  # where anything is slow, and elsewhere
_ORPHAN_S = 0.6
_TOLD_S = 2.0  # time, behind the recovery from a trouble, in which a holder hears of what happened in it
_HEARD_S = 0.15  # time in which a caller gets its result
# The types whose waiters of one process are a queue. (So are those of reentrant locks; but who holds one does not wait.)
_IN_LINE = ("exclusive", "fenced")


def _texts(*chosen: Script) -> set[bytes]:
    """Return the texts and hashes of scripts, by which commands call them."""
    every = [*chosen, *(script.single.script for script in chosen if script.single is not None)]
    forms = [form for script in every for form in (script.plain, script.flagged, script.sharded)]
    return {text for form in forms for text in (form.sha1.encode(), form.source)}


_FORCED = _texts(scripts.FORCE_RELEASE)
_RELEASES = _texts(scripts.RELEASE, scripts.RELEASE_MANY)
# Queries change nothing, and a forced release names the holders that were seen.
_UNCONCERNED = _FORCED | _texts(scripts.LOOK, scripts.LOOK_HOLDERS)
_WRITE_FENCE = _texts(scripts.WRITE_FENCE)
_UNCONFIRMED = _texts(scripts.ADOPT, scripts.SWAP_HOLDER)  # scripts whose grants are not confirmed by replicas
_READS = (b"GET", b"EXISTS", b"HEXISTS")


class ServerRules(Record):
    """The rules of the servers' side."""

    def keys_changed(self, host: Host, keys: list[bytes], words: list[bytes]) -> None:
        """A command has changed keys of a server."""
        tampering = self._tampering or (len(words) > 1 and words[1] in _FORCED)
        for key in keys:
            if key.startswith(b"wheel_lock:"):
                self._companion_changed(host, key, words)
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
                    mine[token] = replace(
                        span, place=old.name, tampered=False, copies=set(), released=False, process=None
                    )
                    self._spans[old.store, key, token].append(mine[token])
        keys.update(dict.fromkeys(key for key in new.server.data if new.is_of_store(key)))
        with self.tampering(breaks=not old.alive):
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
        """What a former master says no longer counts."""
        for place, key in list(self._known):
            if place == old.name:
                for span in self._known.pop((place, key)).values():
                    span.end = min(span.end, self.now)

    def _companion_changed(self, host: Host, key: bytes, words: list[bytes]) -> None:
        data = host.server.data
        if len(words) > 1 and words[1] in _WRITE_FENCE:
            self.exercised["S4"] += 1
            name, _, token = words[3:6]
            if data.get(name) != token:
                self.broken("S4", f"{_shown(words)} wrote the fence of {name!r} for {token!r}, which does not hold it")
        if key in data and key not in host.server.expires and not key.startswith(b"wheel_lock:permits:"):
            self.broken("expiry", f"the key {key!r} has no expiry")
        self.exercised["expiry"] += 1

    def _lock_changed(self, host: Host, key: bytes, words: list[bytes], tampering: bool) -> None:
        if key not in host.server.data and any(each.server.has(key) for each in host.others_of_store(key)):
            return  # a node that a slot leaves removes a key that has expired there, and the next one has it anew
        now, place = self.now, host.place(key)
        known = self._known[place, key]
        there, was_held = self._holders(host, key), any(span.end > now + SAME_S for span in known.values())
        until, undisturbed = max((span.end for span in known.values()), default=0.0), bool(known) and not tampering
        if key in host.server.data and key not in host.server.expires and not tampering:
            self.broken("expiry", f"the key {key!r} has no expiry after {_shown(words)}")
        if tampering:
            self.tampered.add(key)
            if not self._breaking:
                self.changed_unnoticed.add(key)
        released = False
        for token, span in list(known.items()):
            end = there.get(token)
            if span.end <= now or end is None:
                if span.end > now + SAME_S:
                    self._touched(words, key, token)
                    span.end, span.tampered, span.released = now, tampering, token in words
                    if not tampering:
                        self._shortened(host, key, token, now)
                    elif self._breaking:
                        self._check_told_later(place, key, token)
                    released = released or token in words
                undisturbed = undisturbed and not span.tampered
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
                by = self._sender if token in words and not self._tampering else None
                clock_us = host.server.now_us
                span = known[token] = Span(now, end, end, place, process=by, host=host.name, clock_us=clock_us)
                self._spans[host.store, key, token].append(span)
                self._scheduler.note("%s: %s belongs to %s until %.3f", host.name, key, token, end)
                if len(words) > 1 and words[1] in _UNCONFIRMED:
                    self._unconfirmed.add(token)
                if was_held and not (key in self.permits or isinstance(host.server.data[key], ZSet)):
                    self._handed_over.add(token)
                else:
                    self._check_order(host, key, token)
                    if not was_held or key in self.permits:
                        self._check_wake_up(host, key)
        fewer = permits_key(key) in host.server.data  # permits than the rules know of
        if len(known) >= self.permits.get(key, 1) or (known and (fewer or not released)):
            self._free.pop((place, key), None)
        elif was_held and released:
            self._free[place, key] = Free(now, True, self._believers(key))
        elif undisturbed and not was_held:
            self._free[place, key] = Free(until, False, self._believers(key))

    def _believers(self, key: bytes) -> set[Process]:
        """Return the processes that still count a lock as held that has just become free."""
        if key in self.permits:
            return set()  # they may have other permits
        active = self._active.items()
        return {process for process, beliefs in active if any(belief.name == key for belief in beliefs.values())}

    def _check_wake_up(self, host: Host, key: bytes) -> None:
        """A lock is granted that was free, or its waiter gives up: not long after it was released, or has expired."""
        free = self._free.get((host.place(key), key))
        if free is None or free.since < self.trouble_until or self._tampering:
            return
        there = [wait for wait in self._waiters if wait.name == key and wait.process.alive]
        if key in self.fair and any(wait.polls for wait in there):
            return  # it may be that one's turn, and the others have to wait until it polls
        waits = [wait for wait in there if not wait.polls and wait.since < free.since]
        waits = [wait for wait in waits if wait.process not in free.unaware]
        if waits:
            self.exercised["wake-up"] += 1
            settings = waits[0].process.world.settings
            slow = settings.slow_network or settings.slow_processes or settings.piece or settings.constants
            # For 100 ms it may be the turn of readers that have gone.
            slow = slow or key in self.read_write
            limit_s = _WOKEN_S if slow else _WOKEN_SOON_S
            if not free.released:  # no message comes, and a caller that has waited for long polls rarely
                limit_s += 1.5 * settings.context["fallback_s"]
            elif slow and settings.topology:  # to find a server, and to subscribe there, may take several attempts
                limit_s += settings.context["fallback_s"]
            if self.now > free.since + limit_s:
                took_s = self.now - free.since
                self.broken("wake-up", f"{key!r} was free for {took_s:.3f} s, while a caller waited for it")

    @contextmanager
    def waiting(self, process: Process, lock: Any) -> Iterator[Wait]:
        """A caller waits to be woken, or polls."""
        polls = lock._options.retry_every_s is not None
        in_line = lock._engine.nodes_needed is None and lock._lock_type.name in _IN_LINE and not polls
        queue = (lock._engine, lock.name) if in_line else None
        wait = Wait(process, lock.name.encode(), self.now, queue, polls)
        self._waiters[wait] = None
        try:
            yield wait
        finally:
            world = process.world
            if not (world.over or process.paused or lock._engine.closed):
                self._check_wake_up(world.host_of(wait.name), wait.name)
            self._waiters.pop(wait, None)
            for (_, key), free in self._free.items():
                if polls and key == wait.name and key in self.fair:
                    free.since = self.now  # from now on it is the turn of those that it kept waiting

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
        """A token leaves its key: if no caller ever held it, it was not there for long.

        A release may go twice, because the server does not know the script.
        """
        process = span.process
        if span.tampered or process is None or not process.alive or process.forked_at >= span.start:
            return
        if token in self._believed or token in self._handed_over or token.startswith(CALLERS_TOKEN):
            return
        settings = process.world.settings
        if process.closed_at >= span.start and not settings.context["release_on_close"]:
            return  # it may have been granted and lost in one turn
        released_s = 2 * settings.slowest_s if settings.slow_network else 0.0
        until = max(span.start, self.hindered_until) + _ORPHAN_S + released_s
        self.exercised["orphan"] += span.promised > until
        if span.end > until:
            self.broken("orphan", f"{key!r} belonged to {token!r} for {span.end - span.start:.3f} s, without a holder")

    def _shortened(self, host: Host, key: bytes, token: bytes, end: float) -> None:
        """The server's promise ends sooner than it said: no belief may last longer."""
        for process, beliefs in self._active.items():
            for lease, belief in beliefs.items():
                same = belief.token == token and belief.name == key and belief.host == host.place(key)
                if same and lease.is_valid(process.clock.now()) and belief.until > end + SAME_S:
                    who = f"{process.name} holds {key!r}"
                    self.broken("S1", f"{who} until {belief.until:.4f}, the server from now on {end:.4f}")

    def _check_told_later(self, place: str, key: bytes, token: bytes) -> None:
        """A server has lost a key with all connections: its holder hears of that soon after nothing is wrong any more."""
        check_at = self.trouble_until + _TOLD_S
        for process, beliefs in self._active.items():
            for belief in beliefs.values():
                if belief.token == token and belief.name == key and belief.host == place and belief.until > check_at:
                    self.exercised["told"] += 1
                    check = partial(self._check_told, process, belief)
                    self._scheduler.after(max(check_at - self.now, _TOLD_S), check)

    def _check_told(self, process: Process, belief: Belief) -> None:
        if (
            belief.lease not in self._active.get(process, ())
            or process.paused
            or belief.token in self._known[belief.host, belief.name]
        ):
            return
        if self.now < self.trouble_until + _TOLD_S:
            self._check_told_later(belief.host, belief.name, belief.token)
            return
        if belief.lease.is_valid(process.clock.now()):
            self.broken(
                "told", f"{process.name} holds {belief.name!r}, whose server has lost it, until {belief.until:.3f}"
            )

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

    def command_arrives(self, wire: Wire, words: list[bytes], sent_at: float) -> None:
        """A command of a process has arrived at a server."""
        process = wire.link.process
        # What comes later may have been given up long ago, and no caller can clean up behind it.
        in_time = process.forked_at < sent_at > self.now - LATE_S
        self._sender = process if in_time else None  # a forked parent's command is not the child's
        if words[0] in _READS or (len(words) > 1 and words[1] in _UNCONCERNED):
            return
        releases = len(words) > 1 and words[1] in _RELEASES
        if self._parents.keys().isdisjoint(words) and self._released.keys().isdisjoint(words):
            wire.releases.update(words if releases else ())
            return  # as nearly always
        for word in words:
            forked_at = self._parents.get(word)
            if forked_at is not None and sent_at > forked_at + SAME_S:
                self.broken("fork", f"{_shown(words)} was sent for {word!r} of a parent")
            released_at = self._released.get(word)
            if released_at is None:
                continue
            if word in self._of_majority:  # it returns before the releases of the rest, and what goes ahead of them
                ahead = wire.opened_at <= released_at and word not in wire.releases
                if releases or ahead:
                    continue
            if sent_at > released_at + SAME_S:
                self.broken("S6", f"{_shown(words)} was sent for {word!r} after its release had returned")
        wire.releases.update(words if releases else ())


def _queue(host: Host, key: bytes) -> list[tuple[bytes, float]]:
    """Return the waiters of a fair lock in order, each with its expiry in ms of the server's clock."""
    queue, alive = (host.server.data.get(each) for each in queue_keys(key))
    if not isinstance(queue, ZSet) or not isinstance(alive, ZSet):
        return []
    return [(waiter, alive.get(waiter, 0.0)) for waiter, _ in queue.ranked()]


NAMES = {text: script.name for script in scripts.ALL for text in _texts(script)}


def _shown(words: list[bytes]) -> str:
    """Return a command for a person to read."""
    return " ".join(NAMES.get(word, repr(word)[2:-1][:60]) for word in words) or "the server"


def is_acquire(words: list[bytes]) -> bool:
    """Return whether a command is a script that acquires locks."""
    return len(words) > 1 and NAMES.get(words[1], "").startswith("acquire")
