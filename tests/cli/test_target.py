"""``--redis URL`` in all its forms: what is found behind it, or one sentence why it cannot be used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cli.lock_commands import Refused
from tests.cli.test_bench import OldServer
from tests.support.fixtures import fixture_of
from tests.support.ports import candidate_port
from tests.support.redis_server import RedisServer
from tests.topology.cluster_nodes import Nodes
from wheel_lock import LockContext
from wheel_lock.cli import main
from wheel_lock.cli.target import find

SECRET = "not-to-be-shown"
OWN = f"{SECRET}-either"  # the password of the Sentinel
TERMS = ["--locks", "30", "--timeout", "5", "--seconds", "0.05", "--json"]


guarded = fixture_of(
    lambda: RedisServer(password=SECRET, users=[f"weak on >{SECRET} ~* &* +@all -evalsha -eval"]), "module"
)
"""A server with a password, and a user who may not call scripts."""


@pytest.fixture(scope="module")
def sentinel(guarded: RedisServer) -> Iterator[RedisServer]:
    """A Sentinel with a password of its own, which watches the master `main`."""
    lines = f"sentinel monitor main 127.0.0.1 {guarded.port} 1", f"sentinel auth-pass main {SECRET}"
    with RedisServer(*lines, sentinel=True, password=OWN) as server:
        yield server


cluster = fixture_of(Nodes, "module")


def held(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """Hold locks at a URL; all of them are acquired, verified and released."""
    assert main(["hold", "--redis", url, *TERMS]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["owned_at_end"], found["left_at_server"], found["ok"]) == (30, 0, True)


def test_the_master_that_a_sentinel_names(
    capsys: pytest.CaptureFixture[str], sentinel: RedisServer, guarded: RedisServer
) -> None:
    sentinels = f"127.0.0.1:{candidate_port()},127.0.0.1:{sentinel.port}"
    url = f"redis+sentinel://:{SECRET}@{sentinels}/main/0?sentinel_password={OWN}"
    with closing(find(url)) as found:
        assert (found.kind, found.address) == ("sentinel", f"127.0.0.1:{guarded.port}")
    held(capsys, url)
    with LockContext.from_url(url) as context, context.lock("order:42") as lock:
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
    refused: Refused, capsys: pytest.CaptureFixture[str], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHEEL_LOCK_REDIS", redis_server.url)
    assert main(["hold", *TERMS]) == 0
    assert json.loads(capsys.readouterr().out)["server"] == f"127.0.0.1:{redis_server.port}"
    monkeypatch.delenv("WHEEL_LOCK_REDIS")
    status, sentence = refused("hold", *TERMS)
    assert (status, "--redis" in sentence) == (2, True)


REFUSES = "refuses the user or the password"
PLAIN = "the client speaks TLS (rediss://), and the server does not at this port"
SENTINELS = "127.0.0.1:{away},127.0.0.1:{sentinel}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+cluster://:{secret}@127.0.0.1:{away}", "cannot reach the server 127.0.0.1:{away}"),
        ("redis+sentinel://:{secret}@127.0.0.1:{away}/main", "cannot reach the Sentinel 127.0.0.1:{away}"),
        ("redis://:{wrong}@127.0.0.1:{guarded}", f"the server 127.0.0.1:{{guarded}} {REFUSES}"),
        (f"redis+sentinel://:{{wrong}}@{SENTINELS}/main/0?sentinel_password={OWN}", f"{{guarded}} {REFUSES}"),
        (f"redis+sentinel://:{{secret}}@{SENTINELS}/main/0?sentinel_password={{wrong}}", f"{{sentinel}} {REFUSES}"),
        (f"redis+sentinel://{SENTINELS}/other/0?sentinel_password={OWN}", "{sentinel} knows no master 'other'"),
        ("rediss://127.0.0.1:{guarded}?socket_timeout=0.5", PLAIN),
        ("rediss+cluster://127.0.0.1:{guarded}?socket_timeout=0.5", PLAIN),
        ("rediss+sentinel://127.0.0.1:{sentinel}/main?socket_timeout=0.5", PLAIN),
        ("redis+cluster://127.0.0.1:{tls}", "the server speaks TLS at this port, and the client does not"),
        ("valkeys://127.0.0.1:{tls}", "CERTIFICATE_VERIFY_FAILED"),
        ("rediss+cluster://127.0.0.1:{tls}", "CERTIFICATE_VERIFY_FAILED"),
        ("redis+cluster://:{secret}@127.0.0.1:{guarded}", "is not a node of a cluster: use redis://"),
        ("redis://weak:{secret}@127.0.0.1:{guarded}", "NOPERM"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_sentence(
    refused: Refused, sentinel: RedisServer, guarded: RedisServer, tls_redis: RedisServer, url: str, shown: str
) -> None:
    ports = {"guarded": guarded.port, "sentinel": sentinel.port, "tls": tls_redis.tls_port, "away": candidate_port()}
    words = {"secret": SECRET, "wrong": f"{SECRET}-at-all", **ports}
    status, sentence = refused("hold", "--redis", url.format(**words), *TERMS)
    assert status == 1
    assert shown.format(**words) in sentence
    assert SECRET not in sentence


def test_decoded_replies_of_a_cluster_are_refused(refused: Refused, cluster: Nodes) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster.masters[0].port}?decode_responses=true"
    assert refused("hold", "--redis", url, *TERMS)[0] == 2


def test_a_server_of_redis_5_has_no_hello() -> None:
    with OldServer("cluster-enabled yes") as server:
        server.admin.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        with closing(find(f"redis://127.0.0.1:{server.port}")) as found:
            assert found.kind == "cluster"
            assert found.version is not None
