"""acquire + release in asyncio against redis.asyncio's own Lock: 500 tasks, each on a name of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio
from pytest_benchmark.fixture import BenchmarkFixture

from tests.support.redis_server import RedisServer
from wheel_lock import LockContext

TIMEOUT_S = 30.0
TASKS, PAIRS = 500, 10


async def _pairs(lock: Any) -> None:
    for _ in range(PAIRS):
        await lock.acquire()
        await lock.release()


def _in_tasks(benchmark: BenchmarkFixture, make_lock: Callable[[str], Any]) -> None:
    """Time PAIRS pairs in each of TASKS tasks, on a loop that is there already."""
    with asyncio.Runner() as runner:
        locks = [make_lock(f"bench:{number}") for number in range(TASKS)]

        async def all_of_them() -> None:
            await asyncio.gather(*map(_pairs, locks))

        benchmark.pedantic(lambda: runner.run(all_of_them()), rounds=5, warmup_rounds=1)
    if benchmark.stats is not None:
        benchmark.extra_info["pairs_per_s"] = TASKS * PAIRS / benchmark.stats.stats.median


@pytest.mark.benchmark(group=f"acquire+release, {TASKS} tasks")
def test_wheel_lock(benchmark: BenchmarkFixture, server: RedisServer) -> None:
    with LockContext(server.client()) as context:
        _in_tasks(benchmark, lambda name: context.asyncio.lock(name, timeout=TIMEOUT_S))


@pytest.mark.benchmark(group=f"acquire+release, {TASKS} tasks")
def test_redis_py(benchmark: BenchmarkFixture, server: RedisServer) -> None:
    pool = redis.asyncio.BlockingConnectionPool(port=server.port, max_connections=64, timeout=60)
    client = redis.asyncio.Redis(connection_pool=pool)
    _in_tasks(benchmark, lambda name: client.lock(name, timeout=TIMEOUT_S))
