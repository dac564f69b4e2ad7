"""A worker that holds many locks, and answers how many renewals there were and how much CPU time they took.

    python -m bench.holding ours|rival PORT LOCKS TIMEOUT_S [CALLS]

``ours`` is the library. ``rival`` is what a careful user writes with redis-py: once a second, all that is due goes out in
one pipeline of owner-checked EVALSHA, at most CALLS to a pipeline. On both sides a lock is renewed every third of its
timeout, and the renewals are spread evenly over that time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

import redis

from bench.workers import serve
from wheel_lock import LockContext

RENEW = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
return 0
"""
ACQUIRED_AT_ONCE = 10_000


class RenewalLoop:
    """The rival: one thread that renews what is due once a second."""

    def __init__(self, client: redis.Redis, locks: int, timeout_s: float, most_calls: int) -> None:
        self._client = client
        self._interval_s = timeout_s / 3
        self._timeout_ms = round(timeout_s * 1000)
        self._most_calls = most_calls
        self._sha = client.script_load(RENEW)
        now = time.monotonic()
        # All have the same interval, so the one that is renewed goes to the end: cheaper than a heap.
        self._due: deque[tuple[float, str, str]] = deque()
        for first in range(0, locks, ACQUIRED_AT_ONCE):
            with client.pipeline(transaction=False) as pipeline:
                for number in range(first, min(first + ACQUIRED_AT_ONCE, locks)):
                    name, token = f"lock:{number}", f"{number:022d}"
                    pipeline.set(name, token, nx=True, px=self._timeout_ms)
                    self._due.append((now + self._interval_s * number / locks, name, token))
                assert all(pipeline.execute())
        self._renewed = 0
        self._idle = threading.Lock()

    def run(self) -> None:
        wake_at = time.monotonic()
        while True:
            wake_at += 1.0
            time.sleep(max(wake_at - time.monotonic(), 0.0))
            now = time.monotonic()
            with self._idle:
                while self._due[0][0] <= now:
                    self._renewed += self._renew_some(now)

    def answer(self, _: str) -> dict[str, float]:
        with self._idle:  # a pipeline that is under way has cost something, and is not yet counted
            return {"renewed": self._renewed, "cpu_s": time.process_time()}

    def _renew_some(self, now: float) -> int:
        due = self._due
        with self._client.pipeline(transaction=False) as pipeline:
            while due[0][0] <= now and len(pipeline) < self._most_calls:
                due_at, name, token = due.popleft()
                pipeline.evalsha(self._sha, 1, name, token, self._timeout_ms)
                due.append((due_at + self._interval_s, name, token))
            return sum(pipeline.execute())


def hold_in_loop(client: redis.Redis, locks: int, timeout_s: float, most_calls: int) -> None:
    loop = RenewalLoop(client, locks, timeout_s, most_calls)
    threading.Thread(target=loop.run, daemon=True).start()
    serve(loop.answer)


def hold_in_context(client: redis.Redis, locks: int, timeout_s: float) -> None:
    context = LockContext(client, release_on_close=False, response_timeout=60.0)
    held = []
    for first in range(0, locks, ACQUIRED_AT_ONCE):
        names = [f"lock:{number}" for number in range(first, min(first + ACQUIRED_AT_ONCE, locks))]
        held.append(context.acquire_many(names, timeout=timeout_s))

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
