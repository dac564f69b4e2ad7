"""Keeping every kind of lock: what a renewal costs the timer's thread, for a mix of all kinds and for plain locks.

Both are held in the same run, one after the other, by the same number of threads of this process, with the same timeout; a
sixth of the mix each is exclusive, reentrant, read-write (half of it writers, half four readers to a name), fair, a permit
(four to a name), and in a multi lock (three names each). Nothing must be lost.

    python -m bench.family [--locks 100000] [--timeout 30] [--seconds 60] [--each] [--url redis://...]
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import redis

from bench.status_line import StatusLine
from tests.support.redis_server import RedisServer
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.cli.measure import read
from wheel_lock.cli.server import cpu_s

TARGET = 1.5  # times what a plain lock costs
THREADS = 32
READERS, PERMITS, TOGETHER = 4, 4, 3
SETTLE_S = 2.0
CLOSE_S = 60.0
LOOK_S = 0.25


class Recipe(NamedTuple):
    """How a lock is made: which method of a context, what it is given besides the timeout, and which half is meant."""

    method: str
    arguments: tuple[Any, ...]
    half: str = ""

    def make(self, context: LockContext, timeout_s: float) -> Any:
        lock = getattr(context, self.method)(*self.arguments, timeout=timeout_s)
        return getattr(lock, self.half)() if self.half else lock


def exclusive(leases: int) -> Iterator[Recipe]:
    for number in range(leases):
        yield Recipe("lock", (f"exclusive:{number}",))


def reentrant(leases: int) -> Iterator[Recipe]:
    for number in range(leases):
        yield Recipe("reentrant_lock", (f"reentrant:{number}",))


def read_write(leases: int) -> Iterator[Recipe]:
    for number in range(leases // 2):
        yield Recipe("rw_lock", (f"write:{number}",), "write")
    for number in range(leases - leases // 2):
        # Those of one name go to different threads: one that reads twice holds one lease.
        yield Recipe("rw_lock", (f"read:{number // READERS}",), "read")


def fair(leases: int) -> Iterator[Recipe]:
    for number in range(leases):
        yield Recipe("fair_lock", (f"fair:{number}",))


def semaphore(leases: int) -> Iterator[Recipe]:
    for number in range(leases):
        yield Recipe("semaphore", (f"permit:{number // PERMITS}", PERMITS))


def multi(leases: int) -> Iterator[Recipe]:
    for first in range(0, leases, TOGETHER):
        yield Recipe("multi_lock", ([f"multi:{number}" for number in range(first, min(first + TOGETHER, leases))],))


KINDS = (exclusive, reentrant, read_write, fair, semaphore, multi)


def mix(leases: int) -> Iterator[Recipe]:
    shares = [leases // len(KINDS) + (number < leases % len(KINDS)) for number in range(len(KINDS))]
    return chain.from_iterable(kind(share) for kind, share in zip(KINDS, shares, strict=True))


class Cost(NamedTuple):
    """What holding so many leases has cost, in CPU time, and whether all went well."""

    what: str
    held: int
    lost: int
    renewed: int
    client_s: float
    server_s: float
    acquire_s: float

    @property
    def client_us(self) -> float:
        """For each renewal."""
        return self.client_s * 1e6 / max(self.renewed, 1)

    @property
    def server_us(self) -> float:
        """For each renewal."""
        return self.server_s * 1e6 / max(self.renewed, 1)

    def together_with(self, other: Cost) -> Cost:
        """Two parts of one measurement."""
        return Cost(
            self.what,
            min(self.held, other.held),
            self.lost + other.lost,
            self.renewed + other.renewed,
            self.client_s + other.client_s,
            self.server_s + other.server_s,
            (self.acquire_s + other.acquire_s) / 2,
        )


class Threads:
    """Threads that acquire what they are given, and keep it until they are let go: locks belong to their threads."""

    def __init__(self, context: LockContext, timeout_s: float, recipes: Sequence[Recipe]) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._let_go = threading.Event()
        self.acquired = [0] * THREADS
        self._working = [
            threading.Thread(target=self._work, args=(number, recipes[number::THREADS])) for number in range(THREADS)
        ]
        self._ready = threading.Barrier(THREADS + 1)
        for thread in self._working:
            thread.start()

    def _work(self, number: int, recipes: Sequence[Recipe]) -> None:
        held = []
        for recipe in recipes:
            lock = recipe.make(self._context, self._timeout_s)
            if lock.acquire(blocking=False):
                held.append(lock)
                self.acquired[number] += 1
        self._ready.wait()
        self._let_go.wait()

    def wait(self, say: Callable[[int], None]) -> None:
        """Return when everything has been acquired."""
        while self._ready.n_waiting < THREADS:
            say(sum(self.acquired))
            time.sleep(LOOK_S)
        self._ready.wait()

    def end(self) -> None:
        self._let_go.set()
        for thread in self._working:
            thread.join()


def measure(what: str, recipes: Sequence[Recipe], timeout_s: float, seconds: float, url: str) -> Cost:
    """Hold so many leases for so long, and return what that has cost."""
    line, client = StatusLine(sys.stderr), redis.Redis.from_url(url)
    client.flushall()
    timer = HashedWheelTimer()
    context = LockContext(client, timer=timer)
    began = time.monotonic()
    threads = Threads(context, timeout_s, recipes)
    try:
        threads.wait(lambda acquired: line.say(f"{what}: acquired {acquired:,} of {len(recipes):,} locks"))
        acquire_s = time.monotonic() - began
        gc.collect()
        gc.freeze()
        time.sleep(SETTLE_S)  # collecting has kept the renewals waiting
        before = read(context, cpu_s(client))
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            stats = context.stats()
            line.say(f"{what}: {stats.held:,} held, {stats.lost} lost, {stats.renewed:,} renewed, {left_s:.0f} s to go")
            time.sleep(min(LOOK_S, left_s))
        after = read(context, cpu_s(client))
        line.say(f"{what}: releasing")
        return Cost(
            what,
            after.stats.held,
            after.stats.lost,
            after.stats.renewed - before.stats.renewed,
            after.wheel_cpu_s - before.wheel_cpu_s,
            (after.server_cpu_s or 0.0) - (before.server_cpu_s or 0.0),
            acquire_s,
        )
    finally:
        context.close(CLOSE_S)
        threads.end()
        timer.stop()
        client.close()
        gc.unfreeze()
        line.say("")


def show(cost: Cost, plain: Cost) -> None:
    print(
        f"{cost.what:12}{cost.held:>9,}{cost.lost:>6}{cost.renewed:>11,}{cost.client_us:>8.2f} us"
        f"{cost.client_us / plain.client_us:>7.2f}{cost.server_us:>8.2f} us{cost.acquire_s:>9.1f} s",
        flush=True,
    )


def main(given: argparse.Namespace, url: str) -> bool:
    """Print a table; return whether nothing was lost and the target was reached."""

    def hold(kind: Callable[[int], Iterator[Recipe]], seconds: float) -> Cost:
        name = "plain" if kind is exclusive else kind.__name__.replace("_", "-")
        return measure(name, list(kind(given.locks)), given.timeout, seconds, url)

    print(f"{given.locks:,} leases with a timeout of {given.timeout:g} s, held for {given.seconds:g} s")
    print("CPU time of a renewal: client is the timer's thread, ratio is to a plain lock")
    print(f"{'':12}{'held':>9}{'lost':>6}{'renewed':>11}{'client':>11}{'ratio':>7}{'server':>11}{'acquired':>11}")
    # A busy neighbour may come or go: so one half of it before the others, and one after.
    first_half = hold(exclusive, given.seconds / 2)
    others = [hold(kind, given.seconds) for kind in (mix, *(KINDS[1:] if given.each else ()))]
    plain = first_half.together_with(hold(exclusive, given.seconds / 2))
    for cost in (plain, *others):
        show(cost, plain)
    ratio = others[0].client_us / plain.client_us
    print(
        f"a renewal of the mix costs {ratio:.2f} times what that of a plain lock does; the target is {TARGET} at most"
    )
    kept = all(cost.held == given.locks and cost.lost == 0 for cost in (plain, *others))
    print("nothing was lost" if kept else "NOT ALL OF THEM WERE KEPT")
    return kept and ratio <= TARGET


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.family", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--locks", type=int, default=100_000, help="leases that are held")
    parser.add_argument("--timeout", type=float, default=30.0, help="their timeout in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they are held, each time")
    parser.add_argument("--each", action="store_true", help="measure every kind by itself, too")
    parser.add_argument("--url", help="a server whose data may be deleted; by default one is started")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parsed()
    if arguments.url:
        sys.exit(not main(arguments, arguments.url))
    with RedisServer() as server:
        sys.exit(not main(arguments, server.url))
