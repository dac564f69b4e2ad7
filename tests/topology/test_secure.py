"""TLS and passwords, on every kind of connection: data, wake-ups, Sentinels, and each node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.sentinel import Sentinel

from tests.redis.support import Background
from tests.support.redis_server import RedisServer
from tests.support.tls import TlsFiles
from tests.support.waiting import eventually
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

SECRET = "swordfish"


@pytest.fixture
def watched(tls_files: TlsFiles) -> Iterator[redis.Redis]:
    """A client of a master that a Sentinel watches; both speak TLS, and want a password."""
    with RedisServer("tls-replication yes", tls=tls_files, password=SECRET) as master:
        lines = [
            "tls-replication yes",
            f"sentinel monitor locks 127.0.0.1 {master.tls_port} 1",
            f"sentinel auth-pass locks {SECRET}",
        ]
        with RedisServer(*lines, tls=tls_files, password=SECRET, sentinel=True) as sentinel:
            secure = {"ssl": True, "ssl_ca_certs": str(tls_files.ca), "password": SECRET}
            asking = Sentinel([("127.0.0.1", sentinel.tls_port)], sentinel_kwargs=secure, **secure)
            eventually(lambda: asking.discover_master("locks")[1] == master.tls_port)
            client: redis.Redis = asking.master_for("locks")
            yield client


def test_a_master_that_sentinels_watch(watched: redis.Redis) -> None:
    with LockContext(watched, fallback_interval=60.0) as context:
        lock = context.lock("order:42", timeout=10.0, renew_every=0.2, thread_local=False)
        assert lock.acquire()
        eventually(lambda: lock.renewals > 2)
        waiting = Background(context.lock("order:42", thread_local=False).acquire)
        eventually(lambda: context.stats().waiting == 1)
        lock.release()
        assert waiting.result()
        assert SECRET not in repr(context)


def test_a_cluster(tls_files: TlsFiles) -> None:
    lines = ("cluster-enabled yes", "tls-cluster yes", "tls-replication yes")
    with RedisServer(*lines, tls=tls_files, password=SECRET) as server:
        server.client().execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(lambda: b"cluster_state:ok" in raw(server))
        client = redis.RedisCluster(
            host="127.0.0.1", port=server.tls_port, ssl=True, ssl_ca_certs=str(tls_files.ca), password=SECRET
        )
        with LockContext(client, fallback_interval=60.0) as context:
            lock = context.lock("order:42", timeout=10.0, renew_every=0.2, thread_local=False)
            assert lock.acquire()
            eventually(lambda: lock.renewals > 2)
            waiting = Background(context.lock("order:42", thread_local=False).acquire)
            eventually(lambda: context.stats().waiting == 1)
            lock.release()
            assert waiting.result()
            assert SECRET not in repr(context)
        client.close()


def raw(server: RedisServer) -> bytes:
    client = server.client()
    client.set_response_callback("CLUSTER INFO", lambda reply, **_: reply)
    reply = client.execute_command("CLUSTER INFO")
    return reply if isinstance(reply, bytes) else repr(reply).encode()
