"""A small world: two engines and a stranger, a model server, and a network in between that delays, mutes and breaks.

Callers try once, or wait to be woken; those who wait are noted down in the order in which they came.

Every step is a method, and nothing happens by itself: a test, or hypothesis, decides what happens next.
"""

from __future__ import annotations

import bisect
import enum
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.engine.history import History, Loss
from tests.engine.model_server import ModelServer, Subscriptions, message
from tests.engine.rig import OK, START, TICK_S, Attempt, Command, ScriptedServer, error, integer
from tests.engine.waiting_rig import Wait, WaitingRig
from tests.engine.watched_rig import message as invalidation
from wheel_lock.engine.future import Future
from wheel_lock.errors import LockLost
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.net.pubsub import INVALIDATIONS
from wheel_lock.testing import ManualClock

TRACKING = ("CLIENT", "EXISTS")  # the commands by which keys are watched: they are about no lease


class Network(enum.Enum):
    """How one client's network is."""

    FINE = "everything arrives at once"
    HOLDING = "requests do not arrive yet"
    MUTE = "requests arrive, replies do not"
    DOWN = "connections break, and no new ones can be made"


class Wire:
    """One connection, with what is on its way."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.requests: deque[Command] = deque()
        self.replies = bytearray()
        self.subscriptions = Subscriptions()
        self.feed: Wire | None = None  # where invalidations of what is read on this wire go
        self.caching = False  # what is read next is registered

    @property
    def is_over(self) -> bool:
        """Whether either end has hung up."""
        return self.server.hung_up or self.server.closed


class Client:
    """An engine, its network, and what it holds."""

    def __init__(self, clock: ManualClock, **options: float) -> None:
        self.rig = WaitingRig(clock=clock, **options)
        self.network = Network.FINE
        self.wires: list[Wire] = []
        self.attempts: list[Attempt] = []
        self.waits: list[Wait] = []  # in the order in which they began
        self.noted = 0  # losses that are in the history already

    @property
    def last_turn(self) -> float:
        return self.rig.turned_at[-1]

    def grace(self, deadline: float) -> float:
        """The first turn at which the thread had run for 20 ms since its first turn at or after a deadline."""
        return self._first_turn(self._first_turn(deadline) + 2 * TICK_S)

    def _first_turn(self, moment: float) -> float:
        turned_at = self.rig.turned_at
        position = bisect.bisect_left(turned_at, moment)
        return turned_at[position] if position < len(turned_at) else float("inf")


class World:
    """See above.

    Args:
        rate: How fast the server's clock runs.
        zombies: Whether requests of a connection that has been given up may still be executed, much later.
        options: Settings of both engines.
    """

    def __init__(self, rate: float = 1.0, *, zombies: bool = True, **options: float) -> None:
        self.clock = ManualClock(START)
        self.history = History()
        self.server = ModelServer(self.clock.now, self.history, rate)
        self.server.publish = self._publish
        self.clients = [Client(self.clock, **options), Client(self.clock, **options)]
        self._zombies_walk = zombies
        self.zombies: deque[Command] = deque()
        self.overtakings: list[str] = []
        self.server.changed = self._changed
        self._executing: Wire | None = None
        self._registered: dict[bytes, set[Wire]] = {}  # the wires whose clients watch a key
        self._strangers: dict[bytes, bytes] = {}  # name -> token
        self._stranger_number = 0

    # -- time --------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now()

    @property
    def leases(self) -> Iterator[tuple[Client, Lease]]:
        """Those that have been granted, whatever became of them."""
        for client in self.clients:
            for attempt in client.attempts:
                if attempt.future.done and attempt.future.error is None and attempt.future.result():
                    yield client, attempt.lease
            for wait in client.waits:
                if wait.granted:
                    yield client, wait.lease

    def let_pass(self, seconds: float) -> None:
        """Move the clock; nobody's thread runs meanwhile, but whoever believes goes on believing."""
        start, end = self.now, self.now + seconds
        for _, lease in self.leases:
            if lease.is_valid(start):
                self.history.believes(lease.key, lease.token, start, min(lease.deadline, end), lease.fence)
        for name, token in self._strangers.items():
            if self.server.value(name) == token:
                span = self.history.spans[token][-1]
                self.history.believes(name, token, start, min(span.end, end))
        self.clock.jump(seconds)

    def turn(self, client: Client) -> None:
        """Let a client's thread run."""
        client.rig.turn()
        self._collect(client)

    def work(self, seconds: float, only: Client | None = None) -> None:
        """Let time pass as running threads and the networks' states have it."""
        clients = [only] if only is not None else self.clients
        end = self.now + seconds
        while True:
            for client in clients:
                self._run(client)
            if self.now >= end - 1e-9:
                return
            due = [moment for client in clients if (moment := client.rig.timer.next_due_at()) is not None]
            self.let_pass(max(min([end, *due]) - self.now, 0.0))

    def _run(self, client: Client) -> None:
        """Turn, serve and deliver until nothing moves any more at this moment."""
        for _ in range(100):
            self.turn(client)
            moved = False
            for wire in client.wires:
                if client.network in (Network.FINE, Network.MUTE) and wire.requests:
                    self.serve(wire, len(wire.requests))
                    moved = True
                if client.network is Network.FINE and wire.replies:
                    self.deliver(wire, len(wire.replies))
                    moved = True
            if not moved:
                return
        raise AssertionError("a hundred round trips while the clock stood still: a hot loop")

    # -- the network -------------------------------------------------------------------------------------------------

    def _collect(self, client: Client) -> None:
        known = {wire.server for wire in client.wires}
        client.wires += [Wire(server) for server in client.rig.servers if server not in known]
        for wire in client.wires:
            for command in wire.server.take():
                wire.requests.append(command)
                if command.what not in (*Subscriptions.COMMANDS, *TRACKING):
                    for _, token in command.pairs:
                        self.history.sent(token)
            if wire.is_over and wire.requests:
                if self._zombies_walk:
                    others = (*Subscriptions.COMMANDS, *TRACKING)
                    self.zombies += [each for each in wire.requests if each.what not in others]
                wire.requests.clear()

    def serve(self, wire: Wire, count: int) -> None:
        """Have the server execute the next requests of a connection."""
        for _ in range(min(count, len(wire.requests))):
            command = wire.requests.popleft()
            if command.what not in (*Subscriptions.COMMANDS, *TRACKING):
                self._executing = wire
                wire.replies += self.server.execute(command)
                self._executing = None
            elif self.server.refusal is not None:
                wire.replies += error(self.server.refusal)
            elif command.what in TRACKING:
                wire.replies += self._track(wire, command)
            else:
                wire.replies += wire.subscriptions.reply(command)

    def _track(self, wire: Wire, command: Command) -> bytes:
        """Do what the server does for a client that watches keys, and return the reply."""
        caching, wire.caching = wire.caching, False
        if command.what == "EXISTS":
            if caching and wire.feed is not None:
                for name in command.arguments:
                    self._registered.setdefault(name, set()).add(wire)
            return integer(sum(self.server.value(name) is not None for name in command.arguments))
        wires = [each for client in self.clients for each in client.wires]
        if command.arguments[0] == b"ID":
            return integer(wires.index(wire))
        if command.arguments[0] == b"TRACKING":
            wire.feed = wires[int(command.arguments[3])]
        else:
            wire.caching = True
        return OK

    def _changed(self, name: bytes) -> None:
        """Send invalidations of a key to those who have it registered, but for the client that has changed it."""
        for wire in self._registered.pop(name, ()):
            if (
                wire is not self._executing
                and wire.feed is not None
                and INVALIDATIONS in wire.feed.subscriptions.channels
            ):
                wire.feed.replies += invalidation(name.decode())

    def _publish(self, channel: bytes) -> int:
        wires = [wire for client in self.clients for wire in client.wires if not wire.is_over]
        listening = [wire for wire in wires if channel in wire.subscriptions.channels]
        for wire in listening:
            wire.replies += message(channel)
        return len(listening)

    def serve_zombies(self, count: int) -> None:
        """Have the server execute requests of connections that nobody listens to any more."""
        for _ in range(min(count, len(self.zombies))):
            self.server.execute(self.zombies.popleft())

    def deliver(self, wire: Wire, count: int) -> None:
        """Let that many bytes of the replies arrive at the engine."""
        data, wire.replies = bytes(wire.replies[:count]), wire.replies[count:]
        if not wire.server.closed:
            wire.server.say(data)

    def reset(self, client: Client) -> None:
        """Break all connections of a client."""
        for wire in client.wires:
            wire.server.close()
        self.turn(client)

    def change(self, client: Client, network: Network) -> None:
        """Change the state of a client's network."""
        client.network = network
        rig = client.rig
        refusal = ConnectionRefusedError("down") if network is Network.DOWN else None
        rig.connector.refusal = rig.connector.listeners.refusal = refusal
        rig.launch.slow = network in (Network.HOLDING, Network.MUTE)
        if network is Network.DOWN:
            self.reset(client)
        if not rig.launch.slow:
            rig.launch.go_on()
            self.turn(client)

    # -- what callers do ---------------------------------------------------------------------------------------------

    def acquire(self, client: Client, name: str, timeout: float = 1.0, **terms: Any) -> Attempt:
        """Begin to acquire."""
        attempt = client.rig.acquire(name, timeout, **terms)
        client.attempts.append(attempt)
        self._collect(client)
        return attempt

    def wait(self, client: Client, name: str, timeout: float = 1.0, *, turn: bool = True, **terms: Any) -> Wait:
        """Begin to wait for a lock, in the next turn or now."""
        wait = client.rig.waiter(name, timeout, told=lambda: self._ended(client, wait), **terms)
        client.waits.append(wait)
        client.rig.timer.post(wait.acquisition.begin, client.rig.engine)
        if turn:
            self.turn(client)
        return wait

    def _ended(self, client: Client, wait: Wait) -> None:
        if wait.granted:
            before = client.waits[: client.waits.index(wait)]
            overtaken = sum(each.name == wait.name and each.goes_on for each in before)
            if overtaken:
                self.overtakings.append(f"{overtaken} who had come before still waited for {wait.name!r}")

    def stop_waiting(self, client: Client, wait: Wait, *, turn: bool = True) -> None:
        """Its caller waits no more."""
        client.rig.timer.post(wait.acquisition.give_up, client.rig.engine)
        if turn:
            self.turn(client)

    def release(self, client: Client, lease: Lease) -> Future[None]:
        """Begin to release."""
        self.history.let_go(lease.token)
        future: Future[None] = Future(lambda: self._returned(client, lease, future))
        client.rig.post(lambda: client.rig.engine.release(lease, future))
        self._collect(client)
        return future

    def _returned(self, client: Client, lease: Lease, future: Future[None]) -> None:
        # What had been written before counts as sent before. A lost lease may be cleaned up after its release failed.
        self._collect(client)
        if not isinstance(future.error, LockLost):
            self.history.released(lease.token)

    def extend(self, client: Client, lease: Lease, seconds: float, *, replace: bool) -> Future[None]:
        """Begin to extend."""
        future = client.rig.extend(lease, seconds, replace=replace)
        self._collect(client)
        return future

    def give_up(self, client: Client, attempt: Attempt) -> None:
        """The caller of an acquire waits no more."""
        client.rig.post(attempt.request.give_up)
        self._collect(client)

    def look(self, client: Client, lease: Lease) -> bool:
        """Ask whether a lease is held, as a lock object does from any thread."""
        if lease.is_valid(self.now):
            return True
        if lease.state <= EXTENDING and lease.loss is None:
            lease.record_lapse()
            client.rig.timer.post(partial(client.rig.engine.lapse_seen, lease), client.rig.engine)
        return False

    def report(self, name: str) -> None:
        """The server reports a change of a key that has not changed, as it does when its table of keys is full."""
        self._changed(name.encode())

    def stranger_takes(self, name: str) -> bool:
        """Somebody who is no client of ours, and trusts the server's word alone, takes the lock for a second."""
        self._stranger_number += 1
        token = b"stranger:%d" % self._stranger_number
        self.server.execute(Command("SET", (name.encode(), token, b"NX", b"PX", b"1000")))
        if self.server.value(name.encode()) != token:
            return False
        self._strangers[name.encode()] = token
        return True

    # -- the rules ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Fail if anything that has happened so far breaks a rule."""
        if violations := self.violations():
            raise AssertionError("\n".join(violations))

    def violations(self) -> list[str]:
        self.let_pass(0.0)  # notes who believes at this very moment
        history = self.history
        for client in self.clients:
            if client.noted == sum(client.rig.engine.counters.lost.values()):
                continue  # spares a wait for the notifier's thread
            told = client.rig.told
            for lease, event in told[client.noted :]:
                history.losses.append(Loss(lease.token, event.at, event.deadline, client.grace(event.deadline)))
            client.noted = len(told)
        history.untold = [
            Loss(lease.token, client.last_turn, lease.deadline, client.grace(lease.deadline))
            for client, lease in self.leases
            if lease.state <= EXTENDING and lease.group.alive and client.last_turn >= lease.deadline
        ]
        return [*history.violations(), *self.overtakings]

    def heal_and_let_go(self) -> None:
        """End all faults, and let go of all that is held or asked for."""
        self.server.refusal = None
        for client in self.clients:
            self.change(client, Network.FINE)
            for attempt in client.attempts:
                if not attempt.future.done:
                    self.give_up(client, attempt)
        self.work(0.1)
        for client, lease in list(self.leases):
            if lease.state <= EXTENDING:
                self.release(client, lease)
        self.zombies.clear()

    def close(self) -> None:
        """Close every socket."""
        for client in self.clients:
            client.rig.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
