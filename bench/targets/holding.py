"""A worker that holds many locks, and answers how many renewals there were and how much CPU time they took.

    python -m bench.targets.holding ours|rival PORT LOCKS TIMEOUT_S [CALLS]

``ours`` is the library. ``rival`` is what a careful user writes with redis-py: once a second, all that is due goes out in
one pipeline of owner-checked EVALSHA, at most CALLS to a pipeline. On both sides a lock is renewed every third of its
timeout, and the renewals are spread evenly over that time.
"""

from __future__ import annotations

import sys
import threading
import time

import redis

from bench.rivals.redis_py_loop import RenewalLoop
from bench.workers import serve
from wheel_lock import LockContext

ACQUIRED_AT_ONCE = 10_000


def names(first: int, end: int) -> list[str]:
    return [f"lock:{number}" for number in range(first, end)]


def hold_in_loop(client: redis.Redis, locks: int, timeout_s: float, most_calls: int) -> None:
    loop = RenewalLoop(client, names(0, locks), timeout_s, most_calls, lambda name, reason: None)
    threading.Thread(target=loop.run, daemon=True).start()

    def answer(_: str) -> dict[str, float]:
        with loop.idle:
            return {"renewed": loop.renewed, "cpu_s": time.process_time()}

    serve(answer)


def hold_in_context(client: redis.Redis, locks: int, timeout_s: float) -> None:
    context = LockContext(client, release_on_close=False, response_timeout=60.0)
    held = []
    for first in range(0, locks, ACQUIRED_AT_ONCE):
        piece = names(first, min(first + ACQUIRED_AT_ONCE, locks))
        held.append(context.acquire_many(piece, timeout=timeout_s))

    def answer(_: str) -> dict[str, float]:
        cpu_s, stats = time.process_time(), context.stats()
        assert (stats.lost, stats.held) == (0, locks), f"{stats.lost:,} lost, {stats.held:,} held"
        return {"renewed": stats.renewed, "cpu_s": cpu_s}

    serve(answer)


if __name__ == "__main__":
    side, port, number, timeout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    connected = redis.Redis(port=port, socket_timeout=60.0)
    if side == "ours":
        hold_in_context(connected, number, timeout)
    else:
        hold_in_loop(connected, number, timeout, int(sys.argv[5]) if len(sys.argv) > 5 else number)
