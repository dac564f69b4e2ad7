"""Failovers: what Sentinels tell of them, heard from each of them, and asked for now and then.

A master that has been cut off from the others may go on answering its clients, so it must not be waited for until it falls
silent: when the Sentinels say that another one is the master, it is left at once. An event is only a reason to ask them
all: one that comes late would name the master of yesterday. While nothing is held or wanted, nothing is asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from wheel_lock.alarms import Alarm
from wheel_lock.backoff import JITTER
from wheel_lock.engine.connect import Server
from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.sentinel import SentinelConnector
from wheel_lock.engine.wakeups import WakeUps

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine

# The Sentinel that leads a failover says the second when it ends, and the first when the new master is one.
_CHANNELS = (b"+promoted-slave", b"+switch-master")
_LOOK_EVERY_S = 5.0
_HEED_EVERY_S = 0.25  # for a Sentinel that announces failovers of which the others know nothing
_PAUSE_S = 5.0  # at most, between two attempts to connect to a Sentinel that is away: there are others


class Failovers:
    """Listens to the Sentinels of one service, and asks them. Timer's thread only."""

    def __init__(
        self, engine: Engine, connector: SentinelConnector, launch: Callable[[Callable[[], None]], None]
    ) -> None:
        self._engine = engine
        self._connector = connector
        self._launch = launch
        options = dataclasses.replace(engine.options, backoff_max_s=max(engine.options.backoff_max_s, _PAUSE_S))
        self.wakeups = [WakeUps(engine.timer, each.listener(), options, launch, engine) for each in connector.sentinels]
        connector.opinions.on_change = lambda servers: engine.tell(lambda: self._changed(servers))
        self._next_look: Alarm | None = None
        self._heeded: Alarm | None = None
        self._pace = Pace(_HEED_EVERY_S)
        self._looking = False
        self._look_again = False

    def listen(self) -> None:
        """Begin to listen, and to look now and then, if that has not been done: something is wanted from now on."""
        if self._next_look is None:
            self._set_next_look()
            for wakeups in self.wakeups:
                if wakeups.needed:
                    wakeups.resume()
                else:
                    for channel in _CHANNELS:
                        wakeups.listen(channel, self)
            self._look()

    def begin_anew(self) -> None:
        """Nobody listens any more: after the death of the thread, in a forked child, when all has been hung up."""
        self._engine.timer.cancel(self._next_look)
        self._engine.timer.cancel(self._heeded)
        self._next_look = self._heeded = None
        self._looking = self._look_again = False

    def forget(self) -> None:
        """In a forked child: the alarms and the threads that ask are the parent's."""
        self._next_look = self._heeded = None
        self._connector.forget()

    def listening(self, holds: bool) -> None:
        """A subscription begins to hold, or does not: what was published before was not heard, so ask."""
        if holds:
            self._look()

    def woken(self, message: bytes) -> None:
        """A Sentinel says that a master has been replaced, of this or another service."""
        if self._heeded is not None or self._connector.service.encode() not in message.split():
            return
        now = self._engine.timer.now
        if self._pace.allows(now):
            self._pace.tried(now)
            self._look()
        else:
            self._heeded = self._engine.timer.call_at(now + _HEED_EVERY_S, self._heed, self)

    def _heed(self, now: float) -> None:
        self._heeded = None
        self._pace.tried(now)
        self._look()

    def _set_next_look(self) -> None:
        pause_s = _LOOK_EVERY_S * JITTER.uniform(0.75, 1.25)
        self._next_look = self._engine.timer.call_at(self._engine.timer.now + pause_s, self._look_if_needed, self)

    def _look_if_needed(self, now: float) -> None:
        self._next_look = None
        engine = self._engine
        if engine.held or engine.acquiring or engine.lines:
            self._set_next_look()
            self._look()
        else:
            for wakeups in self.wakeups:
                wakeups.pause()

    def _look(self) -> None:
        """Have the Sentinels asked, once more where that is being done: they may have been asked too early."""
        if self._looking:
            self._look_again = True
            return
        try:
            self._launch(self._ask)
            self._looking = True
        except RuntimeError:
            pass  # no thread can be started; the next look, or what refuses us, will tell

    @property
    def above(self) -> Engine:
        """The engine, whose master this is about."""
        return self._engine

    def crashed(self, error: Exception) -> None:
        """End everything that the engine holds: which server is the master is in doubt."""
        self._engine.crashed(error)

    def _ask(self) -> None:
        """On a helper thread."""
        try:
            self._connector.ask(self._engine.options.connect_timeout_s)
        except BaseException:
            pass  # none of them knows at present
        finally:
            self._engine.tell(self._looked)

    def _looked(self) -> None:
        self._looking = False
        if self._look_again:
            self._look_again = False
            self._look()

    def _changed(self, masters: tuple[Server, ...]) -> None:
        self._pace.granted()
        named = " or ".join(f"{host}:{port}" for host, port in masters)
        error = ConnectionAbortedError(f"the Sentinels say that {named} is the master now")
        for node in self._engine.nodes:
            node.leave_for(masters, error)
        self._engine.wakeups.leave_for(masters, error)
