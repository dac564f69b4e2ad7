"""A real server for the benchmarks that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer, require_redis_server


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print short names and few columns, unless others are asked for."""
    config.option.benchmark_columns = config.option.benchmark_columns or ["median", "iqr", "rounds"]
    if config.option.benchmark_name == "normal":
        config.option.benchmark_name = "short"


@pytest.fixture(scope="session")
def bench_redis() -> Iterator[RedisServer]:
    require_redis_server()
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(bench_redis: RedisServer) -> RedisServer:
    bench_redis.client().flushall()
    return bench_redis
