"""What users of redis-py write to keep many locks: one thread with a loop that renews them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import redis
from redis.exceptions import NoScriptError

from bench.rivals.implementation import Implementation, Lock, Lost

RENEW = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
return 0
"""
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
ACQUIRED_AT_ONCE = 10_000

AnyClient = redis.Redis | redis.RedisCluster


class RenewalLoop:
    """A thread that wakes up once a second and renews what is due by owner-checked EVALSHA, in pipelines.

    Args:
        client: The client, of a server or of a cluster.
        names: What it acquires, spread evenly over an interval.
        timeout_s: Their time-to-live in seconds; the interval of the renewals is a third of it.
        most_calls: The calls of a pipeline.
        lost: Called for each lock whose renewal was refused.
    """

    def __init__(self, client: AnyClient, names: Sequence[str], timeout_s: float, most_calls: int, lost: Lost) -> None:
        self._client = client
        self._interval_s = timeout_s / 3
        self._timeout_ms = round(timeout_s * 1000)
        self._most_calls = most_calls
        self._lost = lost
        self._renew = client.script_load(RENEW)
        now = time.monotonic()
        # All have the same interval, so the one that is renewed goes to the end: cheaper than a heap.
        self._due: deque[tuple[float, str, str]] = deque()
        for first in range(0, len(names), ACQUIRED_AT_ONCE):
            with client.pipeline(transaction=False) as pipeline:
                for number in range(first, min(first + ACQUIRED_AT_ONCE, len(names))):
                    name, token = names[number], f"{number:022d}"
                    pipeline.set(name, token, nx=True, px=self._timeout_ms)
                    self._due.append((now + self._interval_s * number / len(names), name, token))
                assert all(pipeline.execute())
        self.renewed = 0
        self.idle = threading.Lock()
        """Held while it renews: a pipeline that is under way has cost something, and is not yet counted."""

    def run(self) -> None:
        wake_at = time.monotonic()
        while True:
            wake_at += 1.0
            time.sleep(max(wake_at - time.monotonic(), 0.0))
            now = time.monotonic()
            with self.idle:
                while self._due and self._due[0][0] <= now:
                    try:
                        self.renewed += self._renew_some(now)
                    except redis.RedisError:
                        break  # the next second is the next try

    def release(self) -> None:
        release = self._client.script_load(RELEASE)
        with self.idle:
            while self._due:
                with self._client.pipeline(transaction=False) as pipeline:
                    for _ in range(min(len(self._due), ACQUIRED_AT_ONCE)):
                        _, name, token = self._due.popleft()
                        pipeline.execute_command("EVALSHA", release, 1, name, token)
                    pipeline.execute()

    def _renew_some(self, now: float) -> int:
        due = self._due
        taken = []
        with self._client.pipeline(transaction=False) as pipeline:
            while due and due[0][0] <= now and len(pipeline) < self._most_calls:
                taken.append(due.popleft())
                # Not evalsha(): the pipelines of clusters block that, though not the command.
                pipeline.execute_command("EVALSHA", self._renew, 1, taken[-1][1], taken[-1][2], self._timeout_ms)
            try:
                results = pipeline.execute()
            except redis.RedisError as error:
                due.extendleft(reversed(taken))
                if isinstance(error, NoScriptError):
                    self._client.script_load(RENEW)  # the server has been restarted
                raise
        for (due_at, name, token), renewed in zip(taken, results, strict=True):
            if renewed:
                due.append((due_at + self._interval_s, name, token))
            else:
                self._lost(name, "not renewed")
        return sum(results)


class PipelineLoop(Implementation):
    """What a careful user writes: once a second, everything that is due goes out in one pipeline."""

    name = "redis-py, pipeline"
    modes = ("hold",)  # its lock objects are redis-py's
    cluster = True
    most_calls: ClassVar[int] = 1_000  # more to a pipeline keep other clients of the server waiting

    def __init__(self, url: str, timeout_s: float, cluster: bool = False) -> None:
        super().__init__(url, timeout_s)
        self._client: AnyClient = redis.RedisCluster.from_url(url) if cluster else redis.Redis.from_url(url)
        self._loop: RenewalLoop | None = None

    def lock(self, name: str) -> Lock:
        lock: Lock = self._client.lock(name, timeout=self.timeout_s)
        return lock

    def hold(self, names: Sequence[str], lost: Lost) -> None:
        self._loop = RenewalLoop(self._client, names, self.timeout_s, self.most_calls, lost)
        threading.Thread(target=self._loop.run, daemon=True).start()

    def renewed(self) -> int:
        assert self._loop is not None
        with self._loop.idle:
            return self._loop.renewed

    def let_go(self) -> None:
        assert self._loop is not None
        self._loop.release()
