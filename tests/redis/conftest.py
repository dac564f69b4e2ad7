"""Fixtures: the same server twice, once real and once embedded, and a context on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis.support import Backend
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext
from wheel_lock.testing import EmbeddedServer


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


def _opened(backend: Backend) -> Iterator[Backend]:
    with backend:
        backend.view.flushall()
        yield backend


@pytest.fixture(params=["real", "embedded"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty server of either kind: what is true of the API is true on both."""
    # Asked for here and not as arguments, so that without a redis-server only half of the tests are skipped.
    if request.param == "real":
        server: RedisServer = request.getfixturevalue("redis_server")
        yield from _opened(Backend("real", server.port))
    else:
        embedded: EmbeddedServer = request.getfixturevalue("embedded_server")
        yield from _opened(Backend("embedded", embedded.port))


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[Backend]:
    """The session's real server, for what the embedded one cannot do."""
    yield from _opened(Backend("real", redis_server.port))


@pytest.fixture
def fresh(fresh_redis: RedisServer) -> Iterator[Backend]:
    """A real server of the test's own, as a backend."""
    yield from _opened(Backend("real", fresh_redis.port))


@pytest.fixture
def context(backend: Backend) -> LockContext:
    return backend.context()
