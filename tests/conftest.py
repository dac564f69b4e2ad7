"""Fixtures for everything under tests: real servers, and a network that can fail.

Without a redis-server program the tests that use one are skipped on a laptop, and fail where CI is set.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest

from tests.redis.support import Backend
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.tls import TlsFiles, make_tls_files
from wheel_lock.testing import EmbeddedServer


def pytest_configure() -> None:
    # A shell that starts us in the background has us ignore Ctrl-C, and every program that a test starts would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # The interpreter stands still while it collects, and with it every renewal. What is there for the whole session, some
    # 200,000 objects, is looked at by no collection after this.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(shared_redis_server: RedisServer) -> RedisServer:
    """The session's server, empty. For tests that leave its settings and process alone; see fresh_redis."""
    if not shared_redis_server.alive:
        shared_redis_server.start()
    shared_redis_server.resume()
    with shared_redis_server.client() as client:
        client.flushall()
    return shared_redis_server


@pytest.fixture
def fresh_redis() -> Iterator[RedisServer]:
    """A server of the test's own, to configure, pause, kill and restart."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """An authority and a certificate for localhost and 127.0.0.1."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_redis(tls_files: TlsFiles) -> Iterator[RedisServer]:
    """A server of the test's own whose url is rediss://."""
    with RedisServer(tls=tls_files) as server:
        yield server


@pytest.fixture
def unix_redis() -> Iterator[RedisServer]:
    """A server of the test's own whose url is unix://."""
    with RedisServer(unixsocket=True) as server:
        yield server


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    """A network that can fail, in front of redis_server."""
    with TcpProxy(redis_server.port) as proxy:
        yield proxy


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
        yield from _opened(Backend("embedded", embedded.port, embedded.password))


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[Backend]:
    """The session's real server, for what the embedded one cannot do."""
    yield from _opened(Backend("real", redis_server.port))


@pytest.fixture
def fresh(fresh_redis: RedisServer) -> Iterator[Backend]:
    """A real server of the test's own, as a backend."""
    yield from _opened(Backend("real", fresh_redis.port))
