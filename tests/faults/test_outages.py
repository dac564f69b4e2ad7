"""What users read in the log while a real server is away, refuses, or does not speak the client's language."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis

from tests.faults.support import Pulse
from tests.support.logged import Log
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0
NAMES = ["order:42", "order:43"]


@pytest.fixture
def context(fresh_redis: RedisServer) -> Iterator[LockContext]:
    with LockContext(redis.Redis(port=fresh_redis.port), close_timeout=0.2) as context:
        yield context


def test_a_server_that_is_killed_and_back(
    context: LockContext, fresh_redis: RedisServer, log: Log, pulse: Pulse
) -> None:
    locks = context.acquire_many(NAMES, timeout=60.0, renew_every=0.2)
    fresh_redis.kill()
    eventually(lambda: log.said("unreachable"), PATIENCE_S)
    (warning,) = log.said("unreachable")
    said = re.search(rf":{fresh_redis.port} has been unreachable for (\d+\.\d) s", warning)
    assert said
    assert 1.0 <= float(said[1]) < 2.0 + pulse.stood_s()
    assert "2 locks are held there" in warning
    assert "refused" in warning
    fresh_redis.start()
    eventually(lambda: log.said("well again"), PATIENCE_S)
    eventually(lambda: all(lock is not None and lock.lost for lock in locks.values()), PATIENCE_S)
    assert len(log.said("unreachable")) == len(log.said("well again")) == 1
    assert all(name.startswith("wheel-lock-notifier") for name in log.threads)


def test_a_server_that_speaks_no_tls_any_more(tls_redis: RedisServer, log: Log) -> None:
    with TcpProxy(tls_redis.tls_port) as proxy:
        client = redis.Redis(port=proxy.port, ssl=True, ssl_ca_certs=str(tls_redis.tls.ca))
        with LockContext(client, connect_timeout=0.3, close_timeout=0.2) as context:
            locks = context.acquire_many(NAMES, timeout=60.0)
            proxy.lead_to(tls_redis.port)
            proxy.cut()
            eventually(lambda: log.said("unreachable"), PATIENCE_S)
            (warning,) = log.said("unreachable")
            assert "the client speaks TLS (rediss://), and the server does not at this port" in warning
            proxy.lead_to(tls_redis.tls_port)
            eventually(lambda: log.said("well again"), PATIENCE_S)
            assert all(lock is not None and lock.is_held for lock in locks.values())


@pytest.mark.parametrize(
    ("client_speaks", "server_speaks", "said"),
    [
        (True, False, "the client speaks TLS"),
        (False, True, "the server speaks TLS"),
        (True, True, "CERTIFICATE_VERIFY_FAILED"),  # which is no question of the port
    ],
)
def test_a_port_that_speaks_another_language(
    tls_redis: RedisServer, client_speaks: bool, server_speaks: bool, said: str
) -> None:
    trusted = {} if server_speaks else {"ssl_ca_certs": str(tls_redis.tls.ca)}
    port = tls_redis.tls_port if server_speaks else tls_redis.port
    client = redis.Redis(port=port, **({"ssl": True, **trusted} if client_speaks else {}))  # type: ignore[arg-type]
    with LockContext(client, connect_timeout=0.5) as context, pytest.raises(LockUnavailable, match=said) as caught:
        context.lock("order:42").acquire(blocking_timeout=2.0)
    assert ("does not at this port" in str(caught.value)) is (not server_speaks)
