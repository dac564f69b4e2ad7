"""A worker that holds many locks and acquires many more in bulk, and answers how late the renewals became meanwhile.

    python -m bench.targets.bulk PORT HELD ACQUIRED TIMEOUT_S

It holds the first for TIMEOUT_S, and the others for so long that none of those is renewed meanwhile.
"""

from __future__ import annotations

import sys
import time

import redis

from bench.workers import serve
from wheel_lock import LockContext
from wheel_lock.observe.stats import Histogram

LONG_S = 300.0


def main(port: int, held: int, acquired: int, timeout_s: float) -> None:
    context = LockContext(redis.Redis(port=port, socket_timeout=60.0), release_on_close=False)
    kept = [context.acquire_many([f"held:{number}" for number in range(held)], timeout=timeout_s)]
    time.sleep(timeout_s / 3)  # each has been renewed once

    def acquire(_: str) -> dict[str, float]:
        # The statistics begin with the context; those of the bulk are wanted.
        lag = context._engine.counters.lag = Histogram()
        names, began = [f"bulk:{number}" for number in range(acquired)], time.monotonic()
        kept.append(context.acquire_many(names, timeout=LONG_S))
        took_s, stats = time.monotonic() - began, context.stats()
        assert (stats.lost, stats.held) == (0, held + acquired), f"{stats.lost:,} lost, {stats.held:,} held"
        return {
            "lag p50 ms": lag.quantile(0.5) * 1000,
            "lag p99 ms": lag.quantile(0.99) * 1000,
            "lag max ms": lag.most * 1000,
            "renewals": lag.total,
            "locks/s": acquired / took_s,
        }

    serve(acquire)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
