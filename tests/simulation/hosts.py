"""Servers as processes of the simulated world: with a clock of their own, and pauses, restarts and other troubles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis

from tests.simulation.commands import Server
from tests.simulation.lua import Lua
from tests.simulation.network import Wire
from wheel_lock.protocol import scripts

if TYPE_CHECKING:
    from tests.simulation.world import World

_EPOCH_S = 1_700_000_000.0
_LUA = Lua()
_CLEAN_UP_S = 0.1  # between two looks of a server for keys that have expired


class Host:
    """A server.

    Attributes:
        rate: How fast its clock runs.
        ahead_s: By how much its clock has been set forward.
        paused: Whether it is stopped: requests wait.
        alive: Whether it takes connections.
    """

    def __init__(self, world: World, name: str, rate: float, *, flagged: bool) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.ahead_s = 0.0
        self.paused = False
        self.alive = True
        self._started_at = -1000.0
        self.forgets = False
        self._backlog: list[tuple[Wire, bytes, float]] = []
        self.server = Server(self._now_us, _LUA, flagged=flagged)
        self.server.on_change = lambda keys, words: world.rules.keys_changed(self, keys, words)
        self._forms = [form for script in scripts.ALL for form in (script.flagged if flagged else script.plain,)]
        self._clean_up()

    def _now_us(self) -> int:
        return int((_EPOCH_S + self.ahead_s + self.world.scheduler.now * self.rate) * 1e6)

    @property
    def up_s(self) -> int:
        """The uptime that the server reports, in seconds."""
        return int((self.world.scheduler.now - self._started_at) * self.rate)

    def moment_of(self, server_ms: float) -> float:
        """Return when the server's clock shows so many milliseconds."""
        return (server_ms / 1000 - _EPOCH_S - self.ahead_s) / self.rate

    def _clean_up(self) -> None:
        if self.server.expires and not self.paused:
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
        rules = self.world.rules
        for words, begun_at in wire.commands(data, sent_at):
            rules.command_arrives(words, begun_at)
            wire.reply(self.server.handle(wire.session, words))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for wire, data, sent_at in backlog:
            self.receive(wire, data, sent_at)

    def restart_empty(self) -> None:
        """Crash, and be there again at once, without data, scripts and connections."""
        self._backlog.clear()
        for link in self.world.links_to(self):
            link.reset()
        self._started_at = self.world.scheduler.now
        self.world.rules.fences_lost = True
        with self.world.rules.tampering():
            self.server.start_empty()

    def set_clock(self, ahead_s: float) -> None:
        """Set the clock to another time, forward or back: all keys last for another time than was promised."""
        rules = self.world.rules
        rules.clocks_went_back = rules.clocks_went_back or ahead_s < self.ahead_s
        self.ahead_s = ahead_s
        with rules.tampering():
            rules.keys_changed(self, [key for key in self.server.data if not key.startswith(b"wheel_lock:")], [])
            self.server.expire_due()

    def tamper(self, *words: bytes) -> None:
        """Have a stranger execute a command, such as DEL."""
        session = self.server.connect(lambda data: None)
        with self.world.rules.tampering():
            self.server.handle(session, list(words))
        self.server.disconnect(session)
