"""TLS and passwords, on every kind of connection: data, wake-ups, Sentinels, and each node of a cluster."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from tests.support.background import Background
from tests.support.redis_server import RedisServer, require_redis_7
from tests.support.tls import TlsFiles, make_tls_files
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable

pytestmark = pytest.mark.slow

SECRET = "swordfish"


@contextmanager
def watched_master(
    tls_files: TlsFiles, trusted: Path, of_sentinel: TlsFiles | None = None
) -> Iterator[tuple[RedisServer, redis.Redis]]:
    """A master that a Sentinel watches, and a client of it; both servers speak TLS, and want a password.

    The Sentinel may have a certificate of its own, which a client does not trust.
    """
    with RedisServer("tls-replication yes", tls=tls_files, password=SECRET) as master:
        lines = [
            "tls-replication yes",
            f"sentinel monitor locks 127.0.0.1 {master.tls_port} 1",
            f"sentinel auth-pass locks {SECRET}",
        ]
        with RedisServer(*lines, tls=of_sentinel or tls_files, password=SECRET, sentinel=True) as sentinel:
            secure = {"ssl": True, "ssl_ca_certs": str(trusted), "password": SECRET}
            asking = Sentinel([("127.0.0.1", sentinel.tls_port)], sentinel_kwargs=secure, **secure)
            if of_sentinel is None:
                eventually(lambda: asking.discover_master("locks")[1] == master.tls_port)
            yield master, asking.master_for("locks")


@contextmanager
def secure_cluster(tls_files: TlsFiles, trusted: Path) -> Iterator[tuple[RedisServer, redis.RedisCluster]]:
    """The one node of a cluster, and a client of it; the node speaks TLS, and wants a password."""
    lines = ("cluster-enabled yes", "tls-cluster yes", "tls-replication yes")
    with RedisServer(*lines, tls=tls_files, password=SECRET) as server:
        with server.client() as admin:
            admin.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            admin.set_response_callback("CLUSTER INFO", lambda reply, **_: repr(reply))
            eventually(lambda: "cluster_state:ok" in admin.execute_command("CLUSTER INFO"), interval_s=0.05)
        client = redis.RedisCluster(
            host="127.0.0.1", port=server.tls_port, ssl=True, ssl_ca_certs=str(trusted), password=SECRET
        )
        try:
            yield server, client
        finally:
            client.close()


@contextmanager
def context_of(client: redis.Redis | redis.RedisCluster, **settings: Any) -> Iterator[LockContext]:
    """A context that stops connecting when the block has ended: Python 3.11 leaves a TLS socket behind that is cut off."""
    with LockContext(client, **settings) as context:
        yield context
    eventually(lambda: "wheel-lock-connect" not in [thread.name for thread in threading.enumerate()])


Servers = Callable[[TlsFiles, Path], AbstractContextManager[tuple[RedisServer, Any]]]


@pytest.mark.parametrize("servers", [watched_master, secure_cluster])
def test_locks_are_renewed_and_their_waiters_woken(tls_files: TlsFiles, servers: Servers) -> None:
    with servers(tls_files, tls_files.ca) as (_, client), context_of(client, fallback_interval=60.0) as context:
        lock = context.lock("order:42", timeout=10.0, renew_every=0.2, thread_local=False)
        assert lock.acquire()
        eventually(lambda: lock.renewals > 2)
        waiting = Background(context.lock("order:42", thread_local=False).acquire)
        eventually(lambda: context.stats().waiting == 1)
        lock.release()
        assert waiting.result()
        assert SECRET not in repr(context)


FOREIGN = ["another authority", "another host"]


@pytest.fixture
def foreign(request: pytest.FixtureRequest, tls_files: TlsFiles, tmp_path: Path) -> tuple[TlsFiles, Path]:
    """Certificates that are not those of the server, and the authorities that the client trusts."""
    if request.param == "another authority":
        return make_tls_files(tmp_path), tls_files.ca
    files = make_tls_files(tmp_path, "elsewhere.example")
    both = tmp_path / "both.pem"
    both.write_bytes(tls_files.ca.read_bytes() + files.ca.read_bytes())
    return files, both


def refused(client: redis.Redis | redis.RedisCluster) -> None:
    with context_of(client, response_timeout=5.0) as context:
        with pytest.raises(LockUnavailable, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED") as caught:
            context.lock("order:42", timeout=10.0).acquire()
        assert context.stats().connects == 0
        assert SECRET not in "".join(traceback.format_exception_only(caught.value))
        assert SECRET not in repr(caught.value.__cause__)


@pytest.mark.parametrize("foreign", FOREIGN, indirect=True)
def test_a_sentinel_with_a_foreign_certificate_is_not_trusted(
    tls_files: TlsFiles, foreign: tuple[TlsFiles, Path]
) -> None:
    files, trusted = foreign
    with watched_master(tls_files, trusted, files) as (_, client):
        refused(client)


@pytest.mark.parametrize(
    ("servers", "foreign"), [(watched_master, FOREIGN[1]), (secure_cluster, FOREIGN[0])], indirect=["foreign"]
)
def test_a_server_with_a_foreign_certificate_is_refused_whatever_the_sentinels_say(
    tls_files: TlsFiles, servers: Servers, foreign: tuple[TlsFiles, Path]
) -> None:
    require_redis_7()  # several settings at once
    files, trusted = foreign
    with servers(tls_files, trusted) as (server, client):
        server.client().config_set("tls-cert-file", str(files.cert), "tls-key-file", str(files.key))
        refused(client)
