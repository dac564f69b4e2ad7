"""The small operations, by implementation: what a call costs its caller, in one thread, on a server that does nothing else.

An operation that a package has not got is skipped. ``is it mine?`` is the check that its documentation recommends, which
asks the server with most, and compares a clock with a deadline in wheel_lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.rivals import IMPLEMENTATIONS
from bench.rivals.implementation import Implementation
from tests.support.redis_server import RedisServer

TIMEOUT_S = 30.0
NAMES = 64
KINDS = [kind for kind in (load() for load in IMPLEMENTATIONS.values()) if "pairs" in kind.modes]


def operation(name: str) -> pytest.MarkDecorator:
    return pytest.mark.benchmark(group=name, max_time=0.2, min_rounds=20, warmup=True, warmup_iterations=100)


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
def rival(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[Implementation]:
    rival: Implementation = request.param(server.url, TIMEOUT_S)
    yield rival
    rival.close()


@pytest.fixture
def held(rival: Implementation) -> Iterator[Any]:
    lock = rival.lock("held")
    lock.acquire()
    yield lock
    lock.release()


@operation("acquire and release a free lock")
def test_pair(benchmark: BenchmarkFixture, rival: Implementation) -> None:
    names = itertools.cycle([f"free:{number}" for number in range(NAMES)])

    def pair() -> None:
        lock = rival.lock(next(names))
        lock.acquire()
        lock.release()

    benchmark(pair)


@operation("the same by a with statement")
def test_with(benchmark: BenchmarkFixture, rival: Implementation) -> None:
    names = itertools.cycle([f"free:{number}" for number in range(NAMES)])

    def block() -> None:
        lock: Any = rival.lock(next(names))
        with lock:
            pass

    benchmark(block)


@operation("acquire(blocking=False), refused")
def test_refused(benchmark: BenchmarkFixture, rival: Implementation, held: Any) -> None:
    lock: Any = rival.lock("held")
    assert not benchmark(lambda: lock.acquire(blocking=False))


@operation("renew")
def test_renew(benchmark: BenchmarkFixture, rival: Implementation, held: Any) -> None:
    try:
        rival.renew(held)
    except NotImplementedError as error:
        pytest.skip(str(error))
    benchmark(rival.renew, held)


@operation("is it mine?")
def test_is_mine(benchmark: BenchmarkFixture, rival: Implementation, held: Any) -> None:
    try:
        rival.is_mine(held)
    except NotImplementedError as error:
        pytest.skip(str(error))
    assert benchmark(rival.is_mine, held)
