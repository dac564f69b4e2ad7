"""What users read in the log while a real server is away, refuses, or does not speak the client's language."""

from __future__ import annotations

import pytest
import redis

from tests.support.logged import Log
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable

pytestmark = pytest.mark.slow

EVENTUALLY_S = 20.0
NAMES = ["order:42", "order:43"]


def test_a_server_that_speaks_no_tls_any_more(tls_redis: RedisServer, log: Log) -> None:
    with TcpProxy(tls_redis.tls_port) as proxy:
        client = redis.Redis(port=proxy.port, ssl=True, ssl_ca_certs=str(tls_redis.tls.ca))
        with LockContext(client, connect_timeout=0.3, close_timeout=0.2) as context:
            locks = context.acquire_many(NAMES, timeout=60.0)
            proxy.lead_to(tls_redis.port)
            proxy.cut()
            eventually(lambda: log.said("unreachable"), EVENTUALLY_S)
            (warning,) = log.said("unreachable")
            assert "the client speaks TLS (rediss://), and the server does not at this port" in warning
            proxy.lead_to(tls_redis.tls_port)
            eventually(lambda: log.said("well again"), EVENTUALLY_S)
            assert all(lock is not None and lock.is_held for lock in locks.values())


@pytest.mark.parametrize(
    ("client_speaks", "server_speaks", "said"),
    [
        (True, False, "the client speaks TLS"),
        (False, True, "the server speaks TLS"),
        (True, True, "CERTIFICATE_VERIFY_FAILED"),  # which does not depend on the port
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
