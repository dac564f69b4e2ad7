"""Replicas: what a master has changed arrives after a while, in order, as the keys are then."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.hosts import Host

_USUAL_S = 0.0005
_SLOW_S = 0.05

Change = tuple[bytes, Any, int | None]  # a key, its value, or None, and its expiry


class Feed:
    """The changes on their way from a master to one replica.

    Attributes:
        held: Whether nothing arrives for the moment.
        acknowledged: The number of the last change that the replica is known to have.
    """

    def __init__(self, master: Host, replica: Host) -> None:
        self._master = master
        self.replica = replica
        self.held = False
        self.over = False
        self._stream = master.world.tape.stream(f"feed/{master.name}-{replica.name}")
        self._slow = master.world.settings.slow_network
        self._coming: deque[tuple[int, list[Change]]] = deque()
        self._arrives_at = 0.0
        self.acknowledged = master.changes
        server = replica.server
        server.data = dict(master.server.data)
        server.expires = dict(master.server.expires)
        master.world.rules.copied(replica, list(server.data))

    def put(self, number: int, changes: list[Change]) -> None:
        self._coming.append((number, changes))
        if not self.held:
            self._schedule()

    def _schedule(self) -> None:
        scheduler, delay_s = self._master.world.scheduler, _USUAL_S
        if self._slow:
            dice = self._stream.draw()
            delay_s += dice.up_to(_SLOW_S) if dice.one_in(4) else 0.0
        self._arrives_at = max(self._arrives_at, scheduler.now + delay_s)
        scheduler.after(self._arrives_at - scheduler.now, self._arrive)

    def _arrive(self) -> None:
        if self._coming and not self.held and not self.over:
            self._apply()

    def _apply(self) -> None:
        number, changes = self._coming.popleft()
        server = self.replica.server
        for key, value, expiry in changes:
            if value is None:
                server.data.pop(key, None)
            else:
                server.data[key] = value
            if expiry is None:
                server.expires.pop(key, None)
            else:
                server.expires[key] = expiry
        self.acknowledged = number
        self._master.world.rules.copied(self.replica, [key for key, _, _ in changes])
        self._master.acknowledged()

    def hold(self, held: bool) -> None:
        """Let nothing arrive from now on, or all that has been held back."""
        self.held = held
        if not held:
            for _ in self._coming:
                self._schedule()

    def drain(self) -> None:
        """Have everything arrive now."""
        while self._coming:
            self._apply()
