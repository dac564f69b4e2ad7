"""Hand-over between two processes: from the call of release() in one to the return of acquire() in the other.

Two processes take turns: each holds the lock for a few milliseconds, so that the other one waits by then, and releases it.
Beside wheel_lock, in the same run: the bare minimum that can be written in redis-py, redis-py's Lock, which asks every
100 ms, and python-redis-lock, which waits in BLPOP. CLOCK_MONOTONIC is one clock for all processes of a machine.

    python -m bench.handover        prints a table
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import redis

from bench.workers import Worker, python, serve
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext

HOLD_S = 0.004
LOOK_S = 0.002
NAME = "bench:hand-over"
TURNS = "bench:turns"
RELEASES = {"wheel_lock": 500, "bare": 500, "redis-py": 60, "python-redis-lock": 500}


class HandOver(NamedTuple):
    """What was measured, in seconds."""

    p50_s: float
    p99_s: float
    most_s: float
    releases: int


class BareLock:
    """The least that wakes another process: no owner, no renewal, no time limit, and one name only."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._release = client.register_script(f"redis.call('del', KEYS[1]) redis.call('publish', '{NAME}:free', '')")
        subscription = client.pubsub()
        subscription.subscribe(f"{NAME}:free")
        self._messages = subscription.listen()
        next(self._messages)  # subscribed

    def acquire(self) -> None:
        while not self._client.set(NAME, "token", nx=True, px=30_000):
            next(self._messages)

    def release(self) -> None:
        self._release(keys=[NAME])


def make_lock(rival: str, url: str) -> Any:
    """Return a lock object of a rival; all have acquire() and release()."""
    client = redis.Redis.from_url(url)
    if rival == "wheel_lock":
        return LockContext(client).lock(NAME, timeout=30.0)
    if rival == "bare":
        return BareLock(client)
    if rival == "redis-py":
        return client.lock(NAME, timeout=30.0)
    import redis_lock  # type: ignore[import-untyped]  # python-redis-lock

    return redis_lock.Lock(client, NAME, expire=30)


def take_turns(lock: Any, client: redis.Redis, times: int) -> dict[str, Any]:
    """In a process of its own: hold the lock so many times, and return when it was granted and released."""
    moments: list[tuple[float, float]] = []
    for number in range(times):
        lock.acquire()
        granted_at = time.monotonic()
        turn = client.incr(TURNS)
        time.sleep(HOLD_S)
        moments.append((granted_at, time.monotonic()))
        lock.release()
        # The other one's turn: a releaser that asked again at once would hand over to itself.
        while number < times - 1 and int(client.get(TURNS) or 0) == turn:
            time.sleep(LOOK_S)
    return {"moments": moments}


class Players:
    """Two processes that hand the lock of one rival over to each other."""

    def __init__(self, rival: str, url: str, stack: ExitStack) -> None:
        self._players = [stack.enter_context(Worker(python("bench.handover", rival, url))) for _ in range(2)]

    def ready(self) -> None:
        """Wait until both have connected."""
        for player in self._players:
            player.answer()

    def measure(self, releases: int) -> HandOver:
        """Have them take turns, and return how long the lock took from one to the other."""
        for player in self._players:
            player.tell(str(releases // 2))
        turns = sorted(
            (granted, released, number)
            for number, player in enumerate(self._players)
            for granted, released in player.answer()["moments"]
        )
        delays = sorted(after[0] - before[1] for before, after in itertools.pairwise(turns) if before[2] != after[2])
        return HandOver(_quantile(delays, 0.5), _quantile(delays, 0.99), delays[-1], len(delays))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main() -> None:
    print(f"{'':20} {'p50':>10} {'p99':>10} {'longest':>10} {'hand-overs':>11}")
    for rival, releases in RELEASES.items():
        with RedisServer() as server, ExitStack() as stack:
            players = Players(rival, server.url, stack)
            players.ready()
            found = players.measure(releases)
        times = "".join(f"{seconds * 1000:8.2f} ms" for seconds in (found.p50_s, found.p99_s, found.most_s))
        print(f"{rival:20}{times}{found.releases:12}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        contended, connected = make_lock(sys.argv[1], sys.argv[2]), redis.Redis.from_url(sys.argv[2])
        serve(lambda times: take_turns(contended, connected, int(times)))
    else:
        main()
