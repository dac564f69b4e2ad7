"""A server that reads nothing (SIGSTOP): what callers go on asking for costs a bounded amount, and it is back at once.

The form of a minute: ``STOPPED_SECONDS=60 pytest tests/faults/test_stopped.py``.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.faults.support import Pulse, now
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, WheelLockError
from wheel_lock.engine.engine import Engine
from wheel_lock.net.connection import MOST_QUEUED_BYTES, PipelinedConnection
from wheel_lock.net.node import MOST_SUSPECTED, MOST_UNANSWERED

pytestmark = pytest.mark.slow


STOPPED_S = float(os.environ.get("STOPPED_SECONDS", "3"))
RESPONSE_S = 0.3
THREADS = 64
NAME = "n" * 400
BACK_S = 1.0  # after that the server is back, on a machine that has nothing else to do
FLAT_MB = 40  # for what moves without being kept: Python gives memory back late


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Watch:
    """Looks at an engine's nodes every few milliseconds, and keeps the most that it has seen."""

    def __init__(self, *engines: Engine) -> None:
        self._engines = engines
        self.unanswered = self.queued_bytes = self.waiting = 0
        self.most_mb = 0.0
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._enough.set()
        self._thread.join()

    def _pipelines(self) -> Iterator[PipelinedConnection]:
        for engine in self._engines:
            for node in [*engine.router.nodes, *[wakeups._node for wakeups in engine.router.listeners]]:
                if node._pipeline is not None:
                    yield node._pipeline

    def look(self) -> None:
        self.unanswered = max([self.unanswered, *[channel.unanswered for channel in self._pipelines()]])
        self.queued_bytes = max([self.queued_bytes, *[channel._out_bytes for channel in self._pipelines()]])
        waiting = [len(node._waiting) + len(node._own) for engine in self._engines for node in engine.router.nodes]
        self.waiting = max([self.waiting, *waiting])
        self.most_mb = max(self.most_mb, resident_mb())

    def _look(self) -> None:
        while not self._enough.wait(0.005):
            self.look()

    def assert_bounded(self, callers: int) -> None:
        # Each that was sent may need one clean-up, and those were sent that came before anybody was suspicious.
        assert self.unanswered <= 2 * max(callers, MOST_SUSPECTED) <= 2 * MOST_UNANSWERED
        assert self.queued_bytes <= 2 * MOST_QUEUED_BYTES
        assert self.waiting <= 2 * callers + 600


@pytest.fixture
def context(fresh_redis: RedisServer) -> Iterator[LockContext]:
    """A context whose connection stands."""
    client = redis.Redis(port=fresh_redis.port)
    with LockContext(client, response_timeout=RESPONSE_S, close_timeout=0.2) as context:
        back_after_s(context)
        yield context
        fresh_redis.resume()


def back_after_s(context: LockContext) -> float:
    """How long it takes until a lock is granted again."""
    began = time.monotonic()

    def granted() -> bool:
        try:
            with context.lock("again"):
                return True
        except WheelLockError:
            return False

    eventually(granted)
    return time.monotonic() - began


def crowd(seconds: float, use: Callable[[int], object]) -> int:
    """Have many threads call ``use`` again and again for so long; return how often it was called."""
    until = time.monotonic() + seconds
    calls = [0] * THREADS

    def go_on(number: int) -> None:
        while time.monotonic() < until:
            try:
                use(number)
            except WheelLockError:
                pass
            calls[number] += 1

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(calls)


def settled_mb() -> float:
    gc.collect()
    return resident_mb()


def test_under_many_threads_memory_is_flat_and_the_server_is_back_at_once(
    context: LockContext, fresh_redis: RedisServer, pulse: Pulse
) -> None:
    engine = context._engine
    held = context.lock("held", timeout=2 * STOPPED_S + 60.0)
    held.acquire()

    def use(number: int) -> None:
        context.lock(f"{NAME}:{number}", blocking=False).acquire()

    fresh_redis.pause()
    with Watch(engine) as early:
        crowd(STOPPED_S / 2, use)
    middle_mb = settled_mb()
    with Watch(engine) as watch:
        crowd(STOPPED_S / 2, use)
    after_mb = settled_mb()
    resumed_at = now()
    fresh_redis.resume()
    back_s = back_after_s(context)
    early.assert_bounded(THREADS)
    watch.assert_bounded(THREADS)
    assert after_mb < middle_mb + FLAT_MB
    assert held.is_held
    assert back_s - pulse.stood_s(resumed_at) < 3 * BACK_S
    held.release()
