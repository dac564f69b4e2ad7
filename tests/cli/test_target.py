"""``--redis URL`` in all its forms: what is found behind it, or one sentence why it cannot be used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cli.test_arguments import refused
from tests.cli.test_bench import OldServer
from tests.support.ports import candidate_port
from tests.support.redis_server import RedisServer
from tests.topology.cluster_nodes import Nodes
from wheel_lock import LockContext
from wheel_lock.cli import main
from wheel_lock.cli.target import find

SECRET = "not-to-be-shown"
OWN = f"{SECRET}-either"  # the password of the Sentinel
TERMS = ["--locks", "30", "--timeout", "5", "--seconds", "0.05", "--json"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server with a password."""
    with RedisServer(password=SECRET) as server:
        yield server


@pytest.fixture(scope="module")
def sentinel(guarded: RedisServer) -> Iterator[RedisServer]:
    """A Sentinel with a password of its own, which watches the master `main`."""
    lines = f"sentinel monitor main 127.0.0.1 {guarded.port} 1", f"sentinel auth-pass main {SECRET}"
    with RedisServer(*lines, sentinel=True, password=OWN) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with Nodes() as nodes:
        yield nodes


def of_sentinel(sentinel: RedisServer, *, service: str = "main", password: str = SECRET, own: str = OWN) -> str:
    away = candidate_port()
    return (
        f"redis+sentinel://:{password}@127.0.0.1:{away},127.0.0.1:{sentinel.port}/{service}/0?sentinel_password={own}"
    )


def held(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """Hold locks at a URL; all of them are acquired, verified and released."""
    assert main(["hold", "--redis", url, *TERMS]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["owned_at_end"], found["left_at_server"], found["ok"]) == (30, 0, True)


def test_the_master_that_a_sentinel_names(
    capsys: pytest.CaptureFixture[str], sentinel: RedisServer, guarded: RedisServer
) -> None:
    with closing(find(of_sentinel(sentinel))) as found:
        assert (found.kind, found.address) == ("sentinel", f"127.0.0.1:{guarded.port}")
    held(capsys, of_sentinel(sentinel))
    with LockContext.from_url(of_sentinel(sentinel)) as context, context.lock("order:42") as lock:
        assert lock.is_held


def test_a_cluster(capsys: pytest.CaptureFixture[str], cluster: Nodes) -> None:
    away = candidate_port()
    url = f"valkey+cluster://127.0.0.1:{away},127.0.0.1:{cluster.masters[1].port}"
    with closing(find(url)) as found:
        assert (found.kind, len(found.masters)) == ("cluster", 3)
    held(capsys, url)
    held(capsys, f"valkey://127.0.0.1:{cluster.masters[0].port}")
    with LockContext.from_url(url) as context:
        locks = context.acquire_many([f"shard:{number}" for number in range(50)])
        assert all(locks.values())


def test_a_server_of_the_environment(
    capsys: pytest.CaptureFixture[str], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHEEL_LOCK_REDIS", redis_server.url)
    assert main(["hold", *TERMS]) == 0
    assert json.loads(capsys.readouterr().out)["server"] == f"127.0.0.1:{redis_server.port}"
    monkeypatch.delenv("WHEEL_LOCK_REDIS")
    status, sentence = refused(capsys, "hold", *TERMS)
    assert (status, "--redis" in sentence) == (2, True)


def trouble(capsys: pytest.CaptureFixture[str], url: str) -> str:
    """The one sentence for a server that cannot be used."""
    status, sentence = refused(capsys, "hold", "--redis", url, *TERMS)
    assert status == 1
    assert SECRET not in sentence
    return sentence


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    port = candidate_port()
    assert f"cannot reach the server 127.0.0.1:{port}" in trouble(capsys, f"redis+cluster://:{SECRET}@127.0.0.1:{port}")
    url = f"redis+sentinel://:{SECRET}@127.0.0.1:{port}/main"
    assert f"cannot reach the Sentinel 127.0.0.1:{port}" in trouble(capsys, url)


def test_a_wrong_password(capsys: pytest.CaptureFixture[str], sentinel: RedisServer, guarded: RedisServer) -> None:
    wrong = f"{SECRET}-at-all"
    refusal = "refuses the user or the password"
    sentence = trouble(capsys, f"redis://:{wrong}@127.0.0.1:{guarded.port}")
    assert f"the server 127.0.0.1:{guarded.port} {refusal}" in sentence
    sentence = trouble(capsys, of_sentinel(sentinel, password=wrong))
    assert f"the master 127.0.0.1:{guarded.port} {refusal}" in sentence
    assert f"the Sentinel 127.0.0.1:{sentinel.port} {refusal}" in trouble(capsys, of_sentinel(sentinel, own=wrong))


def test_a_master_that_no_sentinel_knows(capsys: pytest.CaptureFixture[str], sentinel: RedisServer) -> None:
    sentence = trouble(capsys, of_sentinel(sentinel, service="other"))
    assert f"the Sentinel 127.0.0.1:{sentinel.port} knows no master 'other'" in sentence


def test_tls_against_plain_text(
    capsys: pytest.CaptureFixture[str], sentinel: RedisServer, guarded: RedisServer, tls_redis: RedisServer
) -> None:
    plain = "the client speaks TLS (rediss://), and the server does not at this port"
    short = "socket_timeout=0.5"
    assert plain in trouble(capsys, f"rediss://127.0.0.1:{guarded.port}?{short}")
    assert plain in trouble(capsys, f"rediss+cluster://127.0.0.1:{guarded.port}?{short}")
    assert plain in trouble(capsys, f"rediss+sentinel://127.0.0.1:{sentinel.port}/main?{short}")
    secure = "the server speaks TLS at this port, and the client does not"
    assert secure in trouble(capsys, f"redis+cluster://127.0.0.1:{tls_redis.tls_port}")


def test_a_certificate_that_is_not_trusted(capsys: pytest.CaptureFixture[str], tls_redis: RedisServer) -> None:
    for scheme in ("valkeys", "rediss+cluster"):
        assert "CERTIFICATE_VERIFY_FAILED" in trouble(capsys, f"{scheme}://127.0.0.1:{tls_redis.tls_port}")


def test_a_server_that_is_no_cluster(capsys: pytest.CaptureFixture[str], guarded: RedisServer) -> None:
    sentence = trouble(capsys, f"redis+cluster://:{SECRET}@127.0.0.1:{guarded.port}")
    assert "is not a node of a cluster: use redis://" in sentence


def test_a_missing_right(capsys: pytest.CaptureFixture[str]) -> None:
    with RedisServer(users=[f"weak on >{SECRET} ~* &* +@all -evalsha -eval"]) as server:
        sentence = trouble(capsys, f"redis://weak:{SECRET}@127.0.0.1:{server.port}")
    assert "no permissions" in sentence or "NOPERM" in sentence


def test_decoded_replies_of_a_cluster_are_refused(capsys: pytest.CaptureFixture[str], cluster: Nodes) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster.masters[0].port}?decode_responses=true"
    assert refused(capsys, "hold", "--redis", url, *TERMS)[0] == 2


def test_a_server_of_redis_5_has_no_hello() -> None:
    with OldServer("cluster-enabled yes") as server:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        with closing(find(f"redis://127.0.0.1:{server.port}")) as found:
            assert found.kind == "cluster"
            assert found.version is not None
