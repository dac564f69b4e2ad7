"""One of five independent masters stops for five seconds: what the locks of a quorum notice of it.

    python -m bench.quorum [--locks 6000] [--timeout 10]

Each lock is a lease on each of the five, so 6,000 locks are 30,000 leases.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import ExitStack

from bench.status_line import StatusLine
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext, QuorumContext
from wheel_lock.observe.stats import Histogram

MASTERS = 5
HANG_S = 5.0
LAG_TARGET_S = 0.05
TOGETHER = 500  # locks that are asked for at once

LINE = StatusLine(sys.stderr)


async def acquire(context: QuorumContext, locks: int, timeout_s: float) -> list[object]:
    """Acquire so many locks; they stay held as long as they are kept."""
    held: list[object] = []
    for first in range(0, locks, TOGETHER):
        some = [
            context.asyncio.lock(f"order:{number}", timeout=timeout_s, thread_local=False)
            for number in range(first, min(first + TOGETHER, locks))
        ]
        granted = await asyncio.gather(*[lock.acquire() for lock in some])
        assert all(granted)
        held += some
        LINE.say(f"{len(held):,} locks")
    return held


def watch(context: QuorumContext, nodes: list[int], seconds: float, what: str) -> Histogram:
    """Let time pass; return the lags of the renewals of some nodes in the meantime."""
    lags = Histogram()
    counters = [context._engine.engines[node].counters for node in nodes]
    kept = [counter.lag for counter in counters]
    for counter in counters:
        counter.lag = lags
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        LINE.say(f"{what}: {context.stats().held:,} held, {context.stats().lost} lost")
        time.sleep(0.25)
    for counter, lag in zip(counters, kept, strict=True):
        counter.lag = lag
    return lags


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quorum", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--locks", type=int, default=6000, help="locks that are held")
    parser.add_argument("--timeout", type=float, default=10.0, help="their timeout in seconds")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(MASTERS)]
        context = stack.enter_context(LockContext.quorum([server.client() for server in servers]))
        held = asyncio.run(acquire(context, arguments.locks, arguments.timeout))
        others = list(range(1, MASTERS))
        watch(context, others, 3.0, "settling")
        before = watch(context, others, 10.0, "all is well")
        servers[0].pause()
        meanwhile = watch(context, others, HANG_S, "one master hangs")
        servers[0].resume()
        watch(context, others, arguments.timeout, "all is well again")
        stats = context.stats()
        LINE.say("")
        more_s = meanwhile.quantile(0.99) - before.quantile(0.99)
        print(f"{len(held):,} locks on {MASTERS} masters, timeout {arguments.timeout:g} s; one hangs for {HANG_S:g} s")
        print(f"p99 of the lag of the others before: {before.quantile(0.99) * 1000:.2f} ms ({before.total:,} renewals)")
        print(f"p99 meanwhile: {meanwhile.quantile(0.99) * 1000:.2f} ms ({meanwhile.total:,} renewals)")
        print(f"more lag: {more_s * 1000:.2f} ms (target: within 50); lost: {stats.lost}; held: {stats.held:,}")
        return int(more_s > LAG_TARGET_S or stats.lost != 0 or stats.held != arguments.locks)


if __name__ == "__main__":
    sys.exit(main())
