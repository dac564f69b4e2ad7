"""Whatever happens in whatever order, S1 to S6 hold: hypothesis plays with the world."""

from __future__ import annotations

import logging
import random
from typing import ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.world import Client, Network, World
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types import EXCLUSIVE, FENCED, Exclusive

NAMES = ("a", "b", "c")
TIMEOUTS = (0.5, 1.0, 3.0)

clients = st.integers(0, 1)
names = st.sampled_from(NAMES)
timeouts = st.sampled_from(TIMEOUTS)
kinds = st.sampled_from([EXCLUSIVE, FENCED])
limits = st.sampled_from([{}, {}, {}, {}, {}, {"renew": False}, {"max_renewals": 1}, {"max_hold": 2.0}])
networks = st.sampled_from([Network.FINE, Network.FINE, *Network])
picks = st.integers(0, 7)  # which of several, counted from the newest


class Machine(RuleBasedStateMachine):
    """Two engines that share a server and contend for few names."""

    extends = False
    zombies = True
    options: ClassVar[dict[str, float]] = {}

    @initialize(rate=st.sampled_from([1.0, 0.995, 1.005]), seed=st.integers(0, 9))
    def begin(self, rate: float, seed: int) -> None:
        random.seed(seed)  # the jitter of pauses
        logging.getLogger("wheel_lock").setLevel(logging.ERROR)  # every loss is logged, and there are very many
        self.world = World(rate, zombies=self.zombies, response_timeout_s=1.5, **self.options)

    def client(self, number: int) -> Client:
        return self.world.clients[number]

    def lease(self, pick: int) -> tuple[Client, Lease] | None:
        leases = [(client, lease) for client, lease in self.world.leases if lease.state <= EXTENDING]
        return leases[-1 - pick % len(leases)] if leases else None

    # -- callers

    @rule(number=clients, name=names, timeout=timeouts, kind=kinds, limits=limits)
    def acquire(self, number: int, name: str, timeout: float, kind: Exclusive, limits: dict[str, float]) -> None:
        self.world.acquire(self.client(number), name, timeout, kind=kind, **limits)

    @rule(number=clients, name=names, timeout=timeouts, kind=kinds, limits=limits)
    def acquire_and_work(
        self, number: int, name: str, timeout: float, kind: Exclusive, limits: dict[str, float]
    ) -> None:
        self.acquire(number, name, timeout, kind, limits)
        self.world.work(0.05)

    @rule(pick=picks)
    def release(self, pick: int) -> None:
        if (found := self.lease(pick)) is not None:
            self.world.release(*found)

    @precondition(lambda self: self.extends)
    @rule(pick=picks, seconds=st.sampled_from([0.3, 1.0, 5.0]), replace=st.booleans())
    def extend(self, pick: int, seconds: float, replace: bool) -> None:
        if (found := self.lease(pick)) is not None:
            self.world.extend(*found, seconds, replace=replace)

    @rule(number=clients, pick=picks)
    def give_up(self, number: int, pick: int) -> None:
        client = self.client(number)
        open_attempts = [attempt for attempt in client.attempts if not attempt.future.done]
        if open_attempts:
            self.world.give_up(client, open_attempts[-1 - pick % len(open_attempts)])

    @rule()
    def look(self) -> None:
        for client, lease in list(self.world.leases):
            self.world.look(client, lease)

    @rule(name=names)
    def stranger_takes(self, name: str) -> None:
        self.world.stranger_takes(name)

    # -- time

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.34, 1.0, 3.0]))
    def work(self, seconds: float) -> None:
        self.world.work(seconds)

    @rule(seconds=st.sampled_from([0.05, 0.2, 0.5]))
    def work_a_little(self, seconds: float) -> None:
        self.world.work(seconds)

    @rule(number=clients, seconds=st.sampled_from([0.1, 0.5, 2.0]))
    def stop_the_other(self, number: int, seconds: float) -> None:
        self.world.work(seconds, only=self.client(number))

    @rule(seconds=st.sampled_from([0.003, 0.05, 0.15, 0.3, 0.9, 2.9]))
    def jump(self, seconds: float) -> None:
        self.world.let_pass(seconds)

    @rule(number=clients)
    def turn(self, number: int) -> None:
        self.world.turn(self.client(number))

    # -- the network and the server

    @rule(number=clients, network=networks)
    def change_the_network(self, number: int, network: Network) -> None:
        self.world.change(self.client(number), network)

    @rule(number=clients, network=networks, seconds=st.sampled_from([0.1, 0.3, 0.7, 2.0]))
    def trouble_for_a_while(self, number: int, network: Network, seconds: float) -> None:
        client = self.client(number)
        self.world.change(client, network)
        self.world.work(seconds)
        self.world.change(client, Network.FINE)

    @rule(number=clients)
    def reset(self, number: int) -> None:
        self.world.reset(self.client(number))

    @rule(number=clients, pick=picks, count=st.integers(1, 3))
    def serve(self, number: int, pick: int, count: int) -> None:
        if wires := self.client(number).wires:
            self.world.serve(wires[-1 - pick % len(wires)], count)

    @rule(number=clients, pick=picks, count=st.sampled_from([1, 3, 1000]))
    def deliver(self, number: int, pick: int, count: int) -> None:
        if wires := self.client(number).wires:
            self.world.deliver(wires[-1 - pick % len(wires)], count)

    @precondition(lambda self: self.zombies)
    @rule(count=st.integers(1, 3))
    def serve_zombies(self, count: int) -> None:
        self.world.serve_zombies(count)

    @rule()
    def flush_scripts(self) -> None:
        self.world.server.known = set()

    @rule(refusal=st.sampled_from([None, None, None, "BUSY no time"]))
    def refuse(self, refusal: str | None) -> None:
        self.world.server.refusal = refusal

    # -- the rules

    @invariant()
    def safe(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            world = self.world
            self.heal()
            world.work(0.2)
            world.work(2 * max(TIMEOUTS))  # L1: within two timeouts
            world.check()
            assert world.server.keys == [], "L1: a name is not free although the faults have stopped"
            self.check_leftovers()
        finally:
            self.world.close()
            logging.getLogger("wheel_lock").setLevel(logging.NOTSET)

    def heal(self) -> None:
        """Nothing goes wrong any more, and everybody lets go of what he has."""
        self.world.heal_and_let_go()

    def check_leftovers(self) -> None:
        """Fail if the engines still keep something of what is over."""
        assert not any(client.rig.acquiring for client in self.world.clients)


class WithExtends(Machine):
    """Without requests that are executed long after their connection was given up."""

    extends = True
    zombies = False


class Watched(Machine):
    """With reports of changed keys, which may be late or lost as everything may."""

    extends = True
    zombies = False
    options: ClassVar[dict[str, float]] = {"watch": True}

    @rule(name=names)
    def report_in_vain(self, name: str) -> None:
        self.world.report(name)


_settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRenewalsAndReleases = Machine.TestCase
TestRenewalsAndReleases.settings = _settings
TestWatched = Watched.TestCase
TestWatched.settings = _settings
TestExtends = WithExtends.TestCase
TestExtends.settings = _settings
