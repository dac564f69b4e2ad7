"""The workers of the rivals in Go: each mode, with tiny numbers."""

from __future__ import annotations

import pytest

from bench.rivals import go
from tests.support import rival_worker
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def go_built() -> None:
    rival_worker.build_or_skip(go)


@pytest.fixture(params=go.PROGRAMS)
def command(request: pytest.FixtureRequest, go_built: None) -> list[str]:
    return go.command(request.param)


def test_hold(command: list[str], redis_server: RedisServer) -> None:
    rival_worker.check_hold(command, redis_server)


@pytest.mark.parametrize(("callers", "kind", "spin"), [(1, "threads", 1), (4, "threads", 0), (20, "tasks", 0)])
def test_pairs(command: list[str], redis_server: RedisServer, callers: int, kind: str, spin: int) -> None:
    rival_worker.check_pairs(command, redis_server, callers, kind, spin)


def test_handover(command: list[str], redis_server: RedisServer) -> None:
    rival_worker.check_handover(command, redis_server)


def test_crowd(command: list[str], redis_server: RedisServer) -> None:
    rival_worker.check_crowd(command, redis_server)


def test_unknown_mode(command: list[str], redis_server: RedisServer) -> None:
    rival_worker.check_unknown_mode(command, redis_server)
