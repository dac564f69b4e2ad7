"""Failovers: a subscription to each Sentinel, and questions to all of them now and then.

A master that is cut off from the others may go on answering its clients, so its silence is not waited for: when the
Sentinels name another master, the old one is left at once. An event is only a reason to ask them all, because a late one
would name an earlier master. While nothing is held or wanted, nothing is asked.
"""

from __future__ import annotations

import dataclasses

from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.net.connector import Server
from wheel_lock.net.pubsub import PubSub
from wheel_lock.net.sentinel import SentinelConnector
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import JITTER
from wheel_lock.runtime.ends import End

# The Sentinel that leads a failover says the second when it ends, and the first when the new master is one.
_CHANNELS = (b"+promoted-slave", b"+switch-master")
_LOOK_EVERY_S = 5.0
_FOLLOW_EVERY_S = 0.25  # after announcements of a Sentinel that the others do not confirm
_PAUSE_S = 5.0  # at most, between two attempts to connect to a Sentinel: there are others


class SentinelRouter(SingleRouter):
    """The router of a master that Sentinels name: it subscribes to them, and asks them."""

    listeners: list[PubSub]

    def __init__(self, leases: LeaseTable, connector: SentinelConnector) -> None:
        super().__init__(leases, connector)
        self.only_renewer: Renewer | None = None
        self._state = state = leases.state
        self._connector = connector
        options = dataclasses.replace(state.options, backoff_max_s=max(state.options.backoff_max_s, _PAUSE_S))
        self._sentinels = [
            PubSub(state.timer, sentinel.listener(), options, state.launch, state) for sentinel in connector.sentinels
        ]
        self.listeners += self._sentinels
        connector.opinions.on_change = lambda servers: state.post_if_open(lambda: self._changed(servers))
        self._next_look: Alarm | None = None
        self._next_follow: Alarm | None = None
        self._pace = Pace(_FOLLOW_EVERY_S)
        self._looking = False
        self._look_again = False

    def watch_master(self) -> None:
        if self._next_look is None:
            self._set_next_look()
            for sentinel in self._sentinels:
                if sentinel.needed:
                    sentinel.resume()
                else:
                    for channel in _CHANNELS:
                        sentinel.listen(channel, self)
            self._look()

    def end(self, how: End, error: Exception) -> None:
        super().end(how, error)
        if how is End.FORKED:  # with alarms of the parent process
            self._connector.after_fork_in_child()
        else:
            self.timer.cancel(self._next_look)
            self.timer.cancel(self._next_follow)
        self._next_look = self._next_follow = None
        self._looking = self._look_again = False

    def on_subscribed(self, holds: bool) -> None:
        """Ask when a subscription is confirmed: earlier messages had no listener."""
        if holds:
            self._look()

    def on_message(self, message: bytes) -> None:
        """Ask, now or after a pause, if a Sentinel announces another master of this service."""
        if self._next_follow is not None or self._connector.service.encode() not in message.split():
            return
        now = self.timer.now
        if self._pace.allows(now):
            self._follow(now)
        else:
            self._next_follow = self.timer.call_at(now + _FOLLOW_EVERY_S, self._follow, self)

    def _follow(self, now: float) -> None:
        self._next_follow = None
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
            for sentinel in self._sentinels:
                sentinel.pause()

    def _look(self) -> None:
        """Ask the Sentinels; if a question is in flight, ask again after it, because it may have come too early."""
        if self._looking:
            self._look_again = True
            return
        try:
            self._state.launch(self._ask)
            self._looking = True
        except RuntimeError:
            pass  # no thread can be started; the next look, or a refused request, finds the new master

    @property
    def above(self) -> EngineState:
        return self._state

    def crashed(self, error: Exception) -> None:
        """Fail the engine: which server is the master is in doubt."""
        self._state.crashed(error)

    def _ask(self) -> None:
        """On a helper thread."""
        try:
            self._connector.ask(self._state.options.connect_timeout_s)
        except BaseException:
            pass  # no Sentinel names a master at present
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
        for listener in (self.wakeups, *[tracking.feed for tracking in self.trackings]):
            listener.leave_for(masters, error)
