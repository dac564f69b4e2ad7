"""Servers as processes of the simulated world: with a clock of their own, and pauses, restarts and other troubles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import redis

from tests.simulation.commands import Server
from tests.simulation.lua import Lua
from tests.simulation.network import Wire
from tests.simulation.replication import Feed
from tests.simulation.scheduler import Event
from tests.simulation.server_rules import is_acquire
from wheel_lock.net.capabilities import FLAGGED, PLAIN, SHARDED
from wheel_lock.protocol import scripts

if TYPE_CHECKING:
    from tests.simulation.world import World

_EPOCH_S = 1_700_000_000.0
_LUA = Lua()
_CLEAN_UP_S = 0.1  # interval at which a server removes expired keys
_UNBLOCKED = (
    b"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n"  # as Redis 7
)


class Wait:
    """A command WAIT, which blocks its connection until ``least`` replicas have a change."""

    def __init__(self, wire: Wire, least: int, change: int) -> None:
        self.wire = wire
        self.least = least
        self.change = change
        self.limit: Event | None = None

    def end(self) -> None:
        if self.limit is not None:
            self.limit.cancel()


class Host:
    """A server.

    Attributes:
        rate: How fast its clock runs.
        ahead_s: By how much its clock has been set forward.
        paused: Whether it is stopped: requests wait.
        alive: Whether it takes connections.
        capability: What the library finds out about it.
        store: What it is a part of: those of one store have the same locks, as long as their replicas are.
        is_of_store: Whether what it says about a key is what its store says.
        feeds: To its replicas.
        changes: How many commands have changed something.
        robs: Whether the next grant of several locks gets no reply, and a stranger takes one of them.
    """

    def __init__(
        self,
        world: World,
        name: str,
        rate: float,
        *,
        flagged: bool,
        in_cluster: bool = False,
        store: str = "",
        ahead_s: float = 0.0,
    ) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.ahead_s = ahead_s
        self.paused = False
        self.alive = True
        self._started_at = -1000.0
        self.forgets = world.settings.forgets
        self.capability = (SHARDED if in_cluster else FLAGGED) if flagged else PLAIN
        self.store = store or name
        self.is_of_store: Callable[[bytes], bool] = lambda key: True
        self.feeds: list[Feed] = []
        self.changes = 0
        self.robs = False
        self._changed_last: list[bytes] = []
        self._waits: list[Wait] = []
        self._backlog: list[tuple[Wire, bytes, float]] = []
        self.server = Server(self._now_us, _LUA, flagged=flagged)
        self.server.on_change = self._changed
        self._forms = [script.form(self.capability) for script in scripts.ALL]
        self._clean_up()

    def _now_us(self) -> int:
        return int((_EPOCH_S + self.ahead_s + self.world.scheduler.now * self.rate) * 1e6)

    def place(self, key: bytes) -> str:
        """Return which name stands for what this server says about a key: that of its store, or its own."""
        return self.store if self.is_of_store(key) else self.name

    def others_of_store(self, key: bytes) -> list[Host]:
        """Return the other servers that say what the store says about a key, as while its slot moves."""
        if not self.is_of_store(key):
            return []
        hosts = self.world.hosts
        return [host for host in hosts if host is not self and host.store == self.store and host.is_of_store(key)]

    def _changed(self, keys: list[bytes], words: list[bytes]) -> None:
        self.world.rules.keys_changed(self, keys, words)
        self._changed_last = [key for key in keys if self.server.has(key) and not key.startswith(b"wheel_lock:")]
        self.replicate(keys)

    def replicate(self, keys: list[bytes]) -> None:
        """Send the replicas what the keys are now."""
        self.changes += 1
        if self.feeds:
            server = self.server
            changes = [(key, server.data.get(key), server.expires.get(key)) for key in keys]
            for feed in self.feeds:
                feed.put(self.changes, changes)

    @property
    def up_s(self) -> int:
        """The uptime that the server reports, in seconds."""
        return int((self.world.scheduler.now - self._started_at) * self.rate)

    def moment_of(self, server_ms: float) -> float:
        """Return when the server's clock shows so many milliseconds."""
        return (server_ms / 1000 - _EPOCH_S - self.ahead_s) / self.rate

    def _clean_up(self) -> None:
        if self.server.expires and not (self.paused or self.server.replica) and self.alive:
            self.server.expire_due()
        self.world.scheduler.after(_CLEAN_UP_S, self._clean_up)

    def greet(self, runs_scripts: bool) -> None:
        """What happens while a connection is made: the scripts are loaded. Raises what the handshake raises."""
        if self.server.refusal is not None:
            code = self.server.refusal.partition(" ")[0]
            if code == "LOADING":
                raise redis.exceptions.BusyLoadingError(self.server.refusal)
            raise redis.exceptions.ConnectionError(self.server.refusal)
        if runs_scripts and not self.forgets:
            session = self.server.sessions.get(0) or self.server.connect(lambda data: None)
            for form in self._forms:
                if form.sha1.encode() not in self.server.scripts:
                    self.server.execute(session, [b"SCRIPT", b"LOAD", form.source])
            self.server.disconnect(session)

    def receive(self, wire: Wire, data: bytes, sent_at: float) -> None:
        """Take bytes of a client."""
        if self.paused:
            self._backlog.append((wire, data, sent_at))
            return
        if not self.alive:
            return
        wire.unread.extend(wire.commands(data, sent_at))
        self._serve(wire)

    def _serve(self, wire: Wire) -> None:
        rules = self.world.rules
        while wire.unread and not wire.blocked:
            words, begun_at = wire.unread.popleft()
            rules.command_arrives(wire, words, begun_at)
            before = self.changes
            if words[0] == b"WAIT":
                self._wait(wire, int(words[1]), int(words[2]) / 1000)
            else:
                wire.reply(self.server.handle(wire.session, words))
            if self.changes != before:
                wire.wrote = self.changes
                if self.robs and len(self._changed_last) > 1 and is_acquire(words) and not self.world.calm:
                    self._rob(wire)

    def _rob(self, wire: Wire) -> None:
        self.robs = False
        key = self._changed_last[-1]
        self.world.scheduler.note("a stranger takes %s, and the reply to its grant is lost", key)
        self.world.rules.trouble(0.0, hinders=False)
        wire.break_off()
        self.tamper(b"SET", key, b"stranger", b"PX", b"700")

    # -- replicas ----------------------------------------------------------------------------------------------------

    def _wait(self, wire: Wire, least: int, limit_s: float) -> None:
        """Answer WAIT: when so many replicas have what the connection has written, or after a while."""
        wire.blocked = True
        wait = Wait(wire, least, wire.wrote)
        self._waits.append(wait)
        wait.limit = self.world.scheduler.after(limit_s, partial(self._give_up, wait))
        self.acknowledged()

    def _copies(self, change: int) -> int:
        return sum(feed.acknowledged >= change for feed in self.feeds)

    def acknowledged(self) -> None:
        """A replica has got something: answer those who have waited for that."""
        for wait in list(self._waits):
            if self._copies(wait.change) >= wait.least and not self.paused:
                self._unblock(wait, b":%d\r\n" % self._copies(wait.change))

    def _give_up(self, wait: Wait) -> None:
        if self.paused:
            wait.limit = self.world.scheduler.after(_CLEAN_UP_S, partial(self._give_up, wait))
        else:
            self._unblock(wait, b":%d\r\n" % self._copies(wait.change))

    def _unblock(self, wait: Wait, reply: bytes) -> None:
        self._waits.remove(wait)
        wait.end()
        wait.wire.blocked = False
        wait.wire.reply(reply)
        self.world.scheduler.after(0.0, partial(self._serve, wait.wire))

    def follow(self, master: Host) -> None:
        """Become a replica: with what the master has, and nothing else."""
        self.world.rules.stepped_down(self)
        self.server.replica = True
        self.feeds.clear()
        for wait in list(self._waits):
            self._unblock(wait, _UNBLOCKED)
        master.feeds.append(Feed(master, self))

    def lead(self) -> None:
        """Become a master."""
        self.server.replica = False
        self.changes += 1

    def die(self) -> None:
        """Stop for good, with all connections."""
        self.alive = False
        self.paused = False
        self._backlog.clear()
        for wait in self._waits:
            wait.end()
        self._waits.clear()
        for link in self.world.links_to(self):
            link.reset()

    def revive(self) -> None:
        self.alive = True
        self.server.sessions.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for wire, data, sent_at in backlog:
            self.receive(wire, data, sent_at)
        self.acknowledged()

    def restart_empty(self) -> None:
        """Crash, and be there again at once, without data, scripts and connections."""
        self._backlog.clear()
        for link in self.world.links_to(self):
            link.reset()
        self._started_at = self.world.scheduler.now
        self.world.rules.fences_lost.append((self.world.scheduler.now, self.name, True))
        with self.world.rules.tampering(breaks=True):
            self.server.start_empty()

    def set_clock(self, ahead_s: float) -> None:
        """Set the clock to another time, forward or back: all keys last for another time than was promised."""
        rules = self.world.rules
        self.ahead_s = ahead_s
        if self.server.replica:
            return  # it says nothing about its keys, and lets none expire
        with rules.tampering():
            rules.keys_changed(self, [key for key in self.server.data if not key.startswith(b"wheel_lock:")], [])
            self.server.expire_due()

    def forget(self, *keys: bytes) -> None:
        """Lose some keys, as in an eviction or a FLUSHALL. Connections stay."""
        self.world.rules.fences_lost.append((self.world.scheduler.now, self.name, False))
        self.tamper(b"DEL", *keys)

    def tamper(self, *words: bytes) -> None:
        """Have a stranger execute a command, such as DEL."""
        session = self.server.connect(lambda data: None)
        with self.world.rules.tampering():
            self.server.handle(session, list(words))
        self.server.disconnect(session)
