"""Hand-over between two processes: from the call of release() in one to the return of acquire() in the other.

Two processes take turns: each holds the lock for a few milliseconds, so that the other one waits by then, and releases it.
Beside wheel_lock, in the same run: redis-py's Lock, which asks every 100 ms, and python-redis-lock, which waits in BLPOP.
CLOCK_MONOTONIC is one clock for all processes of a machine.

    python -m bench.handover [redis-url]        prints a table
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from tests.support.redis_server import RedisServer
from wheel_lock import LockContext

HOLD_S = 0.004
NAME = "bench:hand-over"
TURNS = "bench:turns"
RELEASES = {"wheel_lock": 500, "redis-py": 60, "python-redis-lock": 500}


class HandOver(NamedTuple):
    """What was measured, in seconds."""

    rival: str
    p50_s: float
    p99_s: float
    most_s: float
    releases: int


def make_lock(rival: str, url: str) -> Any:
    """Return a lock object of a rival; all have acquire() and release()."""
    client = redis.Redis.from_url(url)
    if rival == "wheel_lock":
        return LockContext(client).lock(NAME, timeout=30.0)
    if rival == "redis-py":
        return client.lock(NAME, timeout=30.0)
    import redis_lock  # type: ignore[import-untyped]  # python-redis-lock

    return redis_lock.Lock(client, NAME, expire=30)


def take_turns(rival: str, url: str, times: int) -> None:
    """In a process of its own: hold the lock so many times, and print when it was granted and released."""
    lock, client = make_lock(rival, url), redis.Redis.from_url(url)
    moments: list[tuple[float, float]] = []
    sys.stdin.readline()
    for number in range(times):
        lock.acquire()
        granted_at = time.monotonic()
        turn = client.incr(TURNS)
        time.sleep(HOLD_S)
        moments.append((granted_at, time.monotonic()))
        lock.release()
        # The other one's turn: a releaser that asked again at once would hand over to itself.
        while number < times - 1 and int(client.get(TURNS) or 0) == turn:
            time.sleep(0.002)
    print(json.dumps(moments))


def measure(rival: str, url: str, releases: int) -> HandOver:
    """Have two processes take turns, and return how long the lock took from one to the other."""
    command = [sys.executable, "-m", "bench.handover", url, rival, str(releases // 2)]
    players = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    time.sleep(1.0)  # both have started
    for player in players:
        assert player.stdin is not None
        player.stdin.write("go\n")
        player.stdin.flush()
    turns: list[tuple[float, float, int]] = []
    for number, player in enumerate(players):
        output, _ = player.communicate(timeout=300)
        turns.extend((granted, released, number) for granted, released in json.loads(output))
    turns.sort()
    delays = sorted(after[0] - before[1] for before, after in itertools.pairwise(turns) if before[2] != after[2])
    return HandOver(rival, _quantile(delays, 0.5), _quantile(delays, 0.99), delays[-1], len(delays))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main(url: str) -> None:
    print(f"{'':20} {'p50':>10} {'p99':>10} {'longest':>10} {'hand-overs':>11}")
    for rival, releases in RELEASES.items():
        found = measure(rival, url, releases)
        times = "".join(f"{seconds * 1000:8.2f} ms" for seconds in (found.p50_s, found.p99_s, found.most_s))
        print(f"{rival:20}{times}{found.releases:12}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        take_turns(sys.argv[2], sys.argv[1], int(sys.argv[3]))
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with RedisServer() as server:
            main(server.url)
