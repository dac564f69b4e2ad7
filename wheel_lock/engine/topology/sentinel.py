"""Failovers: what Sentinels tell of them, heard from each of them, and asked for now and then.

A master that has been cut off from the others may go on answering its clients, so it must not be waited for until it falls
silent: when the Sentinels say that another one is the master, it is left at once. An event is only a reason to ask them
all: one that comes late would name the master of yesterday. While nothing is held or wanted, nothing is asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.net.connector import Server
from wheel_lock.net.pubsub import PubSub
from wheel_lock.net.sentinel import SentinelConnector
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import JITTER

# The Sentinel that leads a failover says the second when it ends, and the first when the new master is one.
_CHANNELS = (b"+promoted-slave", b"+switch-master")
_LOOK_EVERY_S = 5.0
_HEED_EVERY_S = 0.25  # for a Sentinel that announces failovers of which the others know nothing
_PAUSE_S = 5.0  # at most, between two attempts to connect to a Sentinel that is away: there are others


class SentinelRouter(SingleRouter):
    """The router of a master that Sentinels name: it subscribes to them, and asks them. Timer's thread only."""

    def __init__(self, leases: LeaseTable, connector: SentinelConnector) -> None:
        super().__init__(leases, connector)
        self._state = state = leases.state
        self._connector = connector
        options = dataclasses.replace(state.options, backoff_max_s=max(state.options.backoff_max_s, _PAUSE_S))
        self._sentinels = [
            PubSub(state.timer, each.listener(), options, state.launch, state) for each in connector.sentinels
        ]
        self.listeners += self._sentinels
        connector.opinions.on_change = lambda servers: state.post_if_open(lambda: self._changed(servers))
        self._next_look: Alarm | None = None
        self._heeded: Alarm | None = None
        self._pace = Pace(_HEED_EVERY_S)
        self._looking = False
        self._look_again = False

    def watch_master(self) -> None:
        if self._next_look is None:
            self._set_next_look()
            for wakeups in self._sentinels:
                if wakeups.needed:
                    wakeups.resume()
                else:
                    for channel in _CHANNELS:
                        wakeups.listen(channel, self)
            self._look()

    def begin_anew(self, begin: Callable[[PubSub], object]) -> None:
        super().begin_anew(begin)
        self.timer.cancel(self._next_look)
        self.timer.cancel(self._heeded)
        self._next_look = self._heeded = None
        self._looking = self._look_again = False

    def after_fork_in_child(self) -> None:
        self._next_look = self._heeded = None  # alarms of the parent process
        self._looking = self._look_again = False
        self._connector.after_fork_in_child()
        super().after_fork_in_child()

    def on_subscribed(self, holds: bool) -> None:
        """A subscription begins to hold, or does not: what was published before was not heard, so ask."""
        if holds:
            self._look()

    def on_message(self, message: bytes) -> None:
        """A Sentinel says that a master has been replaced, of this or another service."""
        if self._heeded is not None or self._connector.service.encode() not in message.split():
            return
        now = self.timer.now
        if self._pace.allows(now):
            self._pace.tried(now)
            self._look()
        else:
            self._heeded = self.timer.call_at(now + _HEED_EVERY_S, self._heed, self)

    def _heed(self, now: float) -> None:
        self._heeded = None
        self._pace.tried(now)
        self._look()

    def _set_next_look(self) -> None:
        pause_s = _LOOK_EVERY_S * JITTER.uniform(0.75, 1.25)
        self._next_look = self.timer.call_at(self.timer.now + pause_s, self._look_if_needed, self)

    def _look_if_needed(self, now: float) -> None:
        self._next_look = None
        if self.leases.held or self.leases.acquiring or self.leases.listener:
            self._set_next_look()
            self._look()
        else:
            for wakeups in self._sentinels:
                wakeups.pause()

    def _look(self) -> None:
        """Have the Sentinels asked, once more where that is being done: they may have been asked too early."""
        if self._looking:
            self._look_again = True
            return
        try:
            self._state.launch(self._ask)
            self._looking = True
        except RuntimeError:
            pass  # no thread can be started; the next look, or what refuses us, will tell

    @property
    def above(self) -> EngineState:
        """The engine, whose master this is about."""
        return self._state

    def crashed(self, error: Exception) -> None:
        """End everything that the engine holds: which server is the master is in doubt."""
        self._state.crashed(error)

    def _ask(self) -> None:
        """On a helper thread."""
        try:
            self._connector.ask(self._state.options.connect_timeout_s)
        except BaseException:
            pass  # none of them knows at present
        finally:
            self._state.post_if_open(self._looked)

    def _looked(self) -> None:
        self._looking = False
        if self._look_again:
            self._look_again = False
            self._look()

    def _changed(self, masters: tuple[Server, ...]) -> None:
        self._pace.granted()
        named = " or ".join(f"{host}:{port}" for host, port in masters)
        error = ConnectionAbortedError(f"the Sentinels say that {named} is the master now")
        for node in self.nodes:
            node.leave_for(masters, error)
        self.wakeups.leave_for(masters, error)
