"""Many locks on several servers: what they cost, and what becomes of them when something happens to the servers.

cluster     100,000 locks on three masters with a replica each, beside the same number on one server in the same run
hang        one of three masters stops for five seconds: what the locks of the others notice
move        a thousand slots change their master while their locks are held
failover    Sentinels make a replica the master

    python -m bench.topology cluster|hang|move|failover [--locks N] [--timeout S] [--seconds S]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis

from bench.status_line import StatusLine
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import MASTERS, Nodes
from tests.topology.watched_master import FAILOVER_S, Watched
from wheel_lock import HashedWheelTimer, Lock, LockContext, LostEvent
from wheel_lock.observe.stats import Histogram
from wheel_lock.protocol.keys import SLOTS, hash_slot

CALLS_TARGET = 1000  # script calls in ten seconds
RATIO_TARGET = 1.5  # times what a renewal costs with one server
LAG_TARGET_S = 0.05
HANG_S = 5.0
PATIENT_MS = 15_000  # a cluster whose nodes do not give each other up within HANG_S
MOVED = 1000  # slots
UNSEEN = 100  # locks that the new master does not have
CLOSE_S = 60.0
LOOK_S = 0.25
SETTLE_S = 2.0  # acquiring and collecting have kept the renewals waiting

SIZES = {
    "cluster": (100_000, 30.0, 60.0),
    "hang": (30_000, 10.0, 20.0),
    "move": (30_000, 10.0, 15.0),
    "failover": (10_000, 10.0, 10.0),
}
"""Locks, timeout, and how long they are held or watched, in seconds."""

LINE = StatusLine(sys.stderr)


class Cost(NamedTuple):
    """What holding so many locks has cost, and whether all went well."""

    held: int
    lost: int
    renewed: int
    client_s: float
    calls: int
    seconds: float
    acquire_s: float

    @property
    def client_us(self) -> float:
        """CPU time of the timer's thread for each renewal."""
        return self.client_s * 1e6 / max(self.renewed, 1)

    @property
    def calls_in_ten_s(self) -> float:
        """Script calls on all servers together."""
        return self.calls * 10 / self.seconds

    def together_with(self, other: Cost) -> Cost:
        """Two parts of one measurement."""
        return Cost(
            min(self.held, other.held),
            self.lost + other.lost,
            self.renewed + other.renewed,
            self.client_s + other.client_s,
            self.calls + other.calls,
            self.seconds + other.seconds,
            (self.acquire_s + other.acquire_s) / 2,
        )


class Holding:
    """A context that holds many locks with random names."""

    def __init__(self, context: LockContext, timer: HashedWheelTimer, locks: int, timeout_s: float) -> None:
        self.context = context
        self.timer = timer
        self.told: list[LostEvent] = []
        names = [secrets.token_hex(8) for _ in range(locks)]
        began = time.monotonic()
        granted = context.acquire_many(names, timeout=timeout_s, on_lost=self.told.append)
        self.acquire_s = time.monotonic() - began
        self.locks: dict[str, Lock] = {str(name): lock for name, lock in granted.items() if lock is not None}

    def watch(self, what: str, seconds: float) -> None:
        """Let time pass, and say how it goes."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self.say(what, left_s)
            time.sleep(min(LOOK_S, left_s))

    def say(self, what: str, left_s: float) -> None:
        stats = self.context.stats()
        LINE.say(f"{what}: {stats.held:,} held, {stats.lost} lost, {stats.renewed:,} renewed, {left_s:.0f} s to go")

    @contextmanager
    def lags(self) -> Iterator[Histogram]:
        """Have the lags of the renewals in the meantime by themselves: those of the statistics go back to the start."""
        counters = self.context._engine.counters
        before, counters.lag = counters.lag, Histogram()
        try:
            yield counters.lag
        finally:
            counters.lag = before


@contextmanager
def holding(client: Any, locks: int, timeout_s: float) -> Iterator[Holding]:
    timer = HashedWheelTimer()
    context = LockContext(client, timer=timer)
    try:
        LINE.say(f"acquiring {locks:,} locks")
        found = Holding(context, timer, locks, timeout_s)
        gc.collect()
        gc.freeze()
        found.watch("settling", SETTLE_S)
        yield found
        LINE.say("releasing")
    finally:
        context.close(CLOSE_S)
        timer.stop()
        gc.unfreeze()
        LINE.say("")


def script_calls(servers: Sequence[redis.Redis]) -> int:
    """How many scripts the servers have been asked to run so far."""
    found = 0
    for server in servers:
        commands: Any = server.info("commandstats")
        found += sum(commands.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))
    return found


def measure(
    what: str, client: Any, servers: Sequence[redis.Redis], locks: int, timeout_s: float, seconds: float
) -> Cost:
    """Hold so many locks for so long, and return what that has cost."""
    with holding(client, locks, timeout_s) as held:
        before, cpu_s, calls, began = held.context.stats(), held.timer.cpu_s(), script_calls(servers), time.monotonic()
        held.watch(what, seconds)
        after = held.context.stats()
        return Cost(
            after.held,
            after.lost,
            after.renewed - before.renewed,
            held.timer.cpu_s() - cpu_s,
            script_calls(servers) - calls,
            time.monotonic() - began,
            held.acquire_s,
        )


def show(what: str, cost: Cost, plain: Cost) -> None:
    print(
        f"{what:12}{cost.held:>9,}{cost.lost:>6}{cost.renewed:>11,}{cost.calls_in_ten_s:>12,.0f}"
        f"{cost.client_us:>9.2f} us{cost.client_us / plain.client_us:>7.2f}{cost.acquire_s:>10.1f} s",
        flush=True,
    )


def verdict(wanted: str, found: str, reached: bool) -> bool:
    print(f"{wanted}: {found}{'' if reached else '   NOT REACHED'}", flush=True)
    return reached


def cluster(locks: int, timeout_s: float, seconds: float) -> bool:
    """Print what locks on a cluster cost beside those on one server; return whether the targets were reached."""
    with RedisServer() as alone, Nodes(replicas=1) as nodes:
        print(f"{locks:,} locks with a timeout of {timeout_s:g} s, held for {seconds:g} s")
        print("calls: scripts on all servers in ten seconds; client: CPU time of the timer's thread for one renewal")
        print(f"{'':12}{'held':>9}{'lost':>6}{'renewed':>11}{'calls':>12}{'client':>12}{'ratio':>7}{'acquired':>12}")

        def one_server() -> Cost:
            client = alone.client()
            return measure("one server", client, [client], locks, timeout_s, seconds / 2)

        # A busy neighbour may come or go: so one half of it before the other, and one after.
        first_half = one_server()
        masters = [server.client() for server in nodes.masters]
        spread = measure("cluster", nodes.client(), masters, locks, timeout_s, seconds)
        plain = first_half.together_with(one_server())
    show("one server", plain, plain)
    show("cluster", spread, plain)
    return all(
        [
            verdict("lost (0)", f"{spread.lost}", spread.lost == 0 and spread.held == locks),
            verdict(
                f"script calls in ten seconds (under {CALLS_TARGET:,})",
                f"{spread.calls_in_ten_s:,.0f}",
                spread.calls_in_ten_s < CALLS_TARGET,
            ),
            verdict(
                f"a renewal costs, compared with one server (at most {RATIO_TARGET})",
                f"{spread.client_us / plain.client_us:.2f}",
                spread.client_us / plain.client_us <= RATIO_TARGET,
            ),
        ]
    )


def hang(locks: int, timeout_s: float, seconds: float) -> bool:
    """Stop one of three masters for a while; print how late the renewals of the others become."""
    with Nodes(node_timeout_ms=PATIENT_MS) as nodes, holding(nodes.client(), locks, timeout_s) as held:
        theirs = [lock for name, lock in held.locks.items() if hash_slot(name.encode()) < SLOTS // MASTERS]
        with held.lags() as before:
            held.watch("all is well", seconds / 2)
        stopped = nodes.masters[0]
        stopped.pause()
        try:
            with held.lags() as meanwhile:  # of the node that hangs nothing is confirmed, so these are the others'
                held.watch("one master hangs", HANG_S)
        finally:
            counts = [lock.renewals for lock in theirs]
            stopped.resume()
        resumed = time.monotonic()
        LINE.say("waiting for the locks of the master that hung")
        due_s = timeout_s / 3 + 2.0
        while not all(lock.renewals > count for lock, count in zip(theirs, counts, strict=True)):
            if time.monotonic() - resumed > due_s:
                break
            time.sleep(LOOK_S)
        after = sum(lock.renewals > count for lock, count in zip(theirs, counts, strict=True))
        held.watch("all is well again", seconds / 2)
        stats = held.context.stats()
    usual_s, lag_s = before.quantile(0.99), meanwhile.quantile(0.99)
    print(f"{locks:,} locks with a timeout of {timeout_s:g} s; one of three masters hangs for {HANG_S:g} s")
    print(f"p99 of the lag before: {usual_s * 1000:.2f} ms ({before.total:,} renewals)")
    print(f"p99 of the lag of the others meanwhile: {lag_s * 1000:.2f} ms ({meanwhile.total:,} renewals)")
    return all(
        [
            verdict("more lag (within 50 ms)", f"{(lag_s - usual_s) * 1000:.2f} ms", lag_s - usual_s <= LAG_TARGET_S),
            verdict("renewed after it went on", f"{after:,} of {len(theirs):,}", after == len(theirs)),
            verdict("lost (0)", f"{stats.lost}", stats.lost == 0 and stats.held == locks),
        ]
    )


class Mover:
    """Moves slots from one master to the next, as redis-cli does. Its connections are kept: there are very many calls."""

    def __init__(self, nodes: Nodes) -> None:
        self._clients = [server.client() for server in nodes.masters]
        self._ports = [server.port for server in nodes.masters]
        self._ids = [nodes.id_of(server) for server in nodes.masters]

    def move(self, slot: int, source: int, target: int) -> None:
        old, new = self._clients[source], self._clients[target]
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[source])
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[target])
        while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            old.execute_command("MIGRATE", "127.0.0.1", self._ports[target], "", 0, 5000, "KEYS", *keys)
        for client in (new, *self._clients):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self._ids[target])


def move(locks: int, timeout_s: float, seconds: float) -> bool:
    """Move slots under held locks; print what was lost."""
    with Nodes() as nodes, holding(nodes.client(), locks, timeout_s) as held:
        mover = Mover(nodes)
        moved = range(MOVED)
        on_the_way = sum(hash_slot(name.encode()) in moved for name in held.locks)
        progress = 0

        def work() -> None:
            nonlocal progress
            for slot in moved:
                mover.move(slot, 0, 1 + slot % 2)
                progress += 1

        with held.lags() as before:
            held.watch("all is well", seconds / 2)
        moving = threading.Thread(target=work)
        began = time.monotonic()
        moving.start()
        with held.lags() as meanwhile:
            while moving.is_alive():
                LINE.say(f"moved {progress:,} of {MOVED:,} slots, {held.context.stats().lost} lost")
                moving.join(LOOK_S)
            took_s = time.monotonic() - began
            held.watch("moved, and held on", seconds)
        stats = held.context.stats()
        began = time.monotonic()
        held.context.release_many(held.locks.values())
        release_s = time.monotonic() - began
        left = sum(server.client().dbsize() for server in nodes.masters)
    print(f"{locks:,} locks with a timeout of {timeout_s:g} s; {on_the_way:,} of them in the {MOVED:,} slots moved")
    print(f"moving took {took_s:.1f} s; p99 of the lag {before.quantile(0.99) * 1000:.2f} ms before, ", end="")
    print(f"{meanwhile.quantile(0.99) * 1000:.2f} ms meanwhile; the release of all took {release_s:.2f} s")
    return all(
        [
            verdict("moved", f"{progress:,} slots", progress == MOVED),
            verdict("lost (0)", f"{stats.lost}", stats.lost == 0 and stats.held == locks),
            verdict("keys left after the release (0)", f"{left}", left == 0),
        ]
    )


def failover(locks: int, timeout_s: float, seconds: float) -> bool:
    """Kill the master under locks that its replica has, all but some; print what became of which."""
    with Watched() as watched, holding(watched.client(), locks, timeout_s) as held:
        heir, old = watched.replica, watched.master
        eventually(lambda: heir.client().dbsize() == locks, FAILOVER_S, message="the replica has all")
        heir.client().replicaof("NO", "ONE")  # what it is made to forget does not come again
        unseen = set(itertools.islice(held.locks, UNSEEN))
        heir.client().delete(*unseen)
        counts = {name: lock.renewals for name, lock in held.locks.items()}
        old.kill()
        began = time.monotonic()
        LINE.say("the master is gone")
        watched.wait_for_another(old)
        named_s = time.monotonic() - began
        kept = [name for name in held.locks if name not in unseen]
        while time.monotonic() - began < timeout_s:
            if len(held.told) >= UNSEEN and all(held.locks[name].renewals > counts[name] for name in kept):
                break
            time.sleep(0.02)
        settled_s = time.monotonic() - began
        held.watch("held on at the new master", seconds)
        told = {event.name for event in held.told}
        stays = sum(held.locks[name].is_held for name in kept)
        reasons = Counter(str(event.reason) for event in held.told)
    print(f"{locks:,} locks with a timeout of {timeout_s:g} s; the replica has all but {UNSEEN}")
    print(f"named by the Sentinels after {named_s:.1f} s, all locks verified there after {settled_s:.1f} s")
    return all(
        [
            verdict("still held of those that the new master has", f"{stays:,} of {len(kept):,}", stays == len(kept)),
            verdict("told lost of the others", f"{len(told)} of {UNSEEN} {dict(reasons)}", told == unseen),
        ]
    )


SCENARIOS: dict[str, Callable[[int, float, float], bool]] = {
    "cluster": cluster,
    "hang": hang,
    "move": move,
    "failover": failover,
}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.topology", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--locks", type=int, help="locks that are held")
    parser.add_argument("--timeout", type=float, help="their timeout in seconds")
    parser.add_argument("--seconds", type=float, help="how long they are held or watched")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parsed()
    wanted = arguments.locks, arguments.timeout, arguments.seconds
    sizes = [own or usual for own, usual in zip(wanted, SIZES[arguments.scenario], strict=True)]
    sys.exit(not SCENARIOS[arguments.scenario](int(sizes[0]), sizes[1], sizes[2]))
