"""How late renewals are confirmed while half a million locks are acquired in bulk, and released again.


100,000 locks are held and renewed; then 500,000 more are acquired with one ``acquire_many``, and released with one
``release_many``. The lag of a renewal is the time from its tick to its confirmation, as in ``context.stats()``, counted for
each of the two operations by itself. Prints one row as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.redis_server import RedisServer, require_redis_server
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.observe.stats import Histogram

LAG_TARGET_MS = 50.0
CLOSE_S = 60.0


class Collections:
    """The automatic collections of Python's garbage collector, by generation: their durations in seconds."""

    def __init__(self) -> None:
        self.took_s: list[list[float]] = [[], [], []]
        self.full_cpu_s: list[float] = []
        self.cpu_s: dict[int, float] = defaultdict(float)  # by thread
        self._began = self._cpu_began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began, self._cpu_began = time.perf_counter(), time.thread_time()
        else:
            self.took_s[info["generation"]].append(time.perf_counter() - self._began)
            cpu_s = time.thread_time() - self._cpu_began
            self.cpu_s[threading.get_ident()] += cpu_s
            if info["generation"] == 2:
                self.full_cpu_s.append(cpu_s)

    @contextmanager
    def watched(self) -> Iterator[Collections]:
        gc.callbacks.append(self)
        try:
            yield self
        finally:
            gc.callbacks.remove(self)


class Turns:
    """The CPU time of each turn of a timer's thread, without the collections that happened in it."""

    def __init__(self, timer: HashedWheelTimer, collections: Collections) -> None:
        self.longest_s = 0.0
        turn = timer.turn

        def timed(*, block: bool = False) -> None:
            here = threading.get_ident()
            collected, began = collections.cpu_s[here], time.thread_time()
            turn(block=block)
            took = time.thread_time() - began - (collections.cpu_s[here] - collected)
            self.longest_s = max(self.longest_s, took)

        timer.turn = timed  # type: ignore[method-assign]


def measured(context: LockContext, turns: Turns, what: str, operation: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Carry out ``operation``; return its result, and the figures of the time in which it ran."""
    counters = context._engine.counters
    lags = counters.lag = Histogram()
    with Collections().watched() as collections:
        turns.longest_s = 0.0
        began = time.perf_counter()
        result = operation()
        took_s = time.perf_counter() - began
    full = collections.took_s[2]
    figures = {
        "seconds": took_s,
        "renewals": lags.total,
        "lag_p50_ms": lags.quantile(0.5) * 1e3,
        "lag_p99_ms": lags.quantile(0.99) * 1e3,
        "lag_max_ms": lags.most * 1e3,
        "longest_turn_cpu_ms": turns.longest_s * 1e3,
        "full_collections": len(full),
        "full_collections_ms": sum(full) * 1e3,
        "full_collections_cpu_ms": sum(collections.full_cpu_s) * 1e3,
        "longest_full_collection_cpu_ms": max(collections.full_cpu_s, default=0.0) * 1e3,
        "longest_full_collection_ms": max(full, default=0.0) * 1e3,
        "longest_young_collection_ms": max((*collections.took_s[0], *collections.took_s[1]), default=0.0) * 1e3,
    }
    return result, {f"{what}_{name}": round(value, 2) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held", type=int, default=100_000, help="locks that are held and renewed meanwhile")
    parser.add_argument("--bulk", type=int, default=500_000, help="locks that are acquired in bulk")
    parser.add_argument("--timeout", type=float, default=30.0, help="of all locks, in seconds")
    arguments = parser.parse_args()
    require_redis_server()
    every = Collections()
    gc.callbacks.append(every)
    timer = HashedWheelTimer()
    turns = Turns(timer, every)
    with RedisServer() as server, LockContext(server.client(), timer=timer, close_timeout=CLOSE_S) as context:
        held = context.acquire_many([f"held:{number}" for number in range(arguments.held)], timeout=arguments.timeout)
        time.sleep(arguments.timeout / 3)  # each is renewed once
        names = [f"bulk:{number}" for number in range(arguments.bulk)]
        row: dict[str, Any] = {"row": "bulk lag", "held": arguments.held, "bulk": arguments.bulk}
        locks, figures = measured(context, turns, "acquire", lambda: context.acquire_many(names, arguments.timeout))
        row |= figures
        _, figures = measured(context, turns, "release", lambda: context.release_many(locks.values()))
        row |= figures
        stats = context.stats()
        row |= {"lost": stats.lost, "target_ms": LAG_TARGET_MS, "met": row["acquire_lag_p99_ms"] <= LAG_TARGET_MS}
        assert stats.held == len(held)
        context.release_many(held.values())
    timer.stop()
    print(json.dumps(row))


if __name__ == "__main__":
    main()
