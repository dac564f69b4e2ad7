"""acquire + release against redis-py's own Lock: one thread, and 64 of them, each on names of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.support.redis_server import RedisServer
from wheel_lock import LockContext

TIMEOUT_S = 30.0
PAIRS = 200


@pytest.fixture
def context(server: RedisServer) -> Iterator[LockContext]:
    with LockContext(server.client()) as context:
        yield context


def _pairs(lock: Any) -> None:
    for _ in range(PAIRS):
        lock.acquire()
        lock.release()


def _on_threads(benchmark: BenchmarkFixture, threads: int, make_lock: Callable[[str], Any]) -> None:
    """Time PAIRS pairs on each of ``threads`` threads that are there already."""
    start, end = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
    running = True

    def work(number: int) -> None:
        lock = make_lock(f"bench:{number}")
        while True:
            start.wait()
            if not running:
                return
            _pairs(lock)
            end.wait()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()

    def round_of_all() -> None:
        start.wait()
        end.wait()

    benchmark.pedantic(round_of_all, rounds=5, warmup_rounds=1)
    running = False
    start.wait()
    for worker in workers:
        worker.join()
    if benchmark.stats is not None:
        benchmark.extra_info["pairs_per_s"] = threads * PAIRS / benchmark.stats.stats.median


@pytest.mark.parametrize("threads", [1, 64])
def test_wheel_lock(benchmark: BenchmarkFixture, context: LockContext, threads: int) -> None:
    benchmark.group = f"acquire+release, {threads} thread(s)"
    _on_threads(benchmark, threads, lambda name: context.lock(name, timeout=TIMEOUT_S))


@pytest.mark.parametrize("threads", [1, 64])
def test_redis_py(benchmark: BenchmarkFixture, server: RedisServer, threads: int) -> None:
    benchmark.group = f"acquire+release, {threads} thread(s)"
    client = server.client(max_connections=threads)
    _on_threads(benchmark, threads, lambda name: client.lock(name, timeout=TIMEOUT_S))
