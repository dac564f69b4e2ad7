"""Whatever happens to those who wait, in whatever order: one holder at a time, first come first served in a process,
nobody waits for ever once the faults have stopped, and nothing is left of those who went. Hypothesis plays with the world.
"""

from __future__ import annotations

from typing import ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from tests.engine.rig import BUG
from tests.engine.test_properties import TIMEOUTS, Machine, clients, kinds, names, picks, timeouts
from tests.engine.waiting_rig import Wait
from tests.engine.world import Client
from wheel_lock.lease import EXTENDING
from wheel_lock.lock_types import Exclusive

MENDED_S = 4.5  # by then a connection for wake-ups that has silently died is noticed, and replaced
patience = st.sampled_from([None, None, None, 0.05, 0.3, 2.0])


class WaitingMachine(Machine):
    """Two engines whose callers wait for few names, beside those who try once."""

    fallback_s: float | None = None
    options: ClassVar[dict[str, float]] = {"fallback_s": 0.5}

    def _wait(
        self, number: int, name: str, timeout: float, kind: Exclusive, patience_s: float | None, *, turn: bool = True
    ) -> None:
        terms = {"kind": kind, "blocking_timeout": patience_s, "fallback": self.fallback_s}
        self.world.wait(self.client(number), name, timeout, turn=turn, **terms)

    @rule(number=clients, name=names, timeout=timeouts, kind=kinds, patience_s=patience, turn=st.booleans())
    def wait(
        self, number: int, name: str, timeout: float, kind: Exclusive, patience_s: float | None, turn: bool
    ) -> None:
        self._wait(number, name, timeout, kind, patience_s, turn=turn)

    @rule(number=clients, name=names, timeout=timeouts, patience_s=patience, times=st.integers(2, 5), kind=kinds)
    def many_wait(
        self, number: int, name: str, timeout: float, patience_s: float | None, times: int, kind: Exclusive
    ) -> None:
        for _ in range(times):
            self._wait(number, name, timeout, kind, patience_s)
        self.world.work(0.05)

    @rule(number=clients, pick=picks, turn=st.booleans())
    def stop_waiting(self, number: int, pick: int, turn: bool) -> None:
        client = self.client(number)
        if waits := self._going_on(client):
            self.world.stop_waiting(client, waits[-1 - pick % len(waits)], turn=turn)

    @rule(number=clients)
    def the_first_stops_waiting(self, number: int) -> None:
        client = self.client(number)
        if waits := self._going_on(client):
            self.world.stop_waiting(client, waits[0])

    @rule(pick=picks)
    def release_and_work(self, pick: int) -> None:
        if (found := self.lease(pick)) is not None:
            self.world.release(*found)
            self.world.work(0.02)

    @rule(number=clients)
    def fail(self, number: int) -> None:
        client = self.client(number)
        client.rig.post(lambda: client.rig.engine.crashed(BUG))

    @rule(refusal=st.sampled_from([None, None, None, "BUSY no time"]))
    def refuse(self, refusal: str | None) -> None:
        self.was_refused = self.was_refused or refusal is not None
        self.world.server.refusal = refusal

    was_refused = False

    def _going_on(self, client: Client) -> list[Wait]:
        return [wait for wait in client.waits if wait.goes_on]

    def heal(self) -> None:
        """Nothing goes wrong any more, and everybody lets go of what he gets: whoever waits gets his turn."""
        world = self.world
        super().heal()
        waits = sum(len(self._going_on(client)) for client in world.clients)
        end = world.now + max(TIMEOUTS) + MENDED_S + 0.2 * waits
        while world.now < end and any(self._going_on(client) for client in world.clients):
            world.work(0.1)
            for client, lease in list(world.leases):
                if lease.state <= EXTENDING:
                    world.release(client, lease)
        left = [wait.name for client in world.clients for wait in self._going_on(client)]
        assert left == [], "somebody waits although all is well and nobody holds anything"

    def check_leftovers(self) -> None:
        super().check_leftovers()
        for client in self.world.clients:
            engine = client.rig.engine
            assert client.rig.waiting == 0
            assert len(engine.wait_queues) == 0
            assert engine.wait_queues.in_flight == {}
            assert not engine.busy
            assert not engine.leases.held
            assert len(client.rig.timer.wheel) == 0
            listening = any(wire.subscriptions.channels for wire in client.wires if not wire.is_over)
            assert self.was_refused or not listening


class WithoutLooks(WaitingMachine):
    """They hardly ever look by themselves, so everything depends on being woken and on knowing when leases end."""

    fallback_s = 1000.0


_settings = settings(
    max_examples=70,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestThoseWhoWait = WaitingMachine.TestCase
TestThoseWhoWait.settings = _settings
TestThoseWhoNeverLook = WithoutLooks.TestCase
TestThoseWhoNeverLook.settings = _settings
