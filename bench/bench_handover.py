"""Hand-over between two processes; see handover.py, which can be run by itself."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.handover import RELEASES, measure
from tests.support.redis_server import RedisServer


@pytest.mark.parametrize("rival", RELEASES)
def test_hand_over(benchmark: BenchmarkFixture, server: RedisServer, rival: str) -> None:
    benchmark.group = "hand-over between two processes: the whole run"
    found = benchmark.pedantic(lambda: measure(rival, server.url, RELEASES[rival]), rounds=1)
    benchmark.extra_info["p50_ms"] = round(found.p50_s * 1000, 3)
    benchmark.extra_info["p99_ms"] = round(found.p99_s * 1000, 3)
