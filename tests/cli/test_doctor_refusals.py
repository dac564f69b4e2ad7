"""``wheel-lock doctor`` on servers that refuse: the rest is checked, and what goes for every lock is said once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.cli.lock_commands import Examined, Refused
from tests.cli.test_doctor import KINDS, with_user
from tests.support.background import Background
from tests.support.ports import candidate_port
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import Nodes
from wheel_lock.cli import main
from wheel_lock.protocol.server_errors import REMEDIES

pytestmark = pytest.mark.slow


@contextmanager
def state_of(code: str) -> Iterator[str]:
    """A server that refuses every lock for the reason ``code``; yield its URL."""
    settings = {
        "CLUSTERDOWN": ["cluster-enabled yes"],
        "MASTERDOWN": ["replica-serve-stale-data no"],
        "NOREPLICAS": ["min-replicas-to-write 1"],
        "MISCONF": ["save 900 1"],
    }
    with RedisServer(*settings.get(code, [])) as server, server.client() as view:
        if code in ("OOM", "MAXCLIENTS"):
            view.config_set("maxmemory" if code == "OOM" else "maxclients", "1")
        elif code in ("READONLY", "MASTERDOWN"):
            view.replicaof("127.0.0.1", str(candidate_port()))
        elif code == "CLUSTERDOWN":
            view.execute_command("CLUSTER", "ADDSLOTS", *range(16000))
        elif code == "MISCONF":
            view.set("order:data", "1")  # without a change there is nothing to save
            (Path(view.config_get("dir")["dir"]) / "dump.rdb" / "in the way").mkdir(parents=True)
            view.bgsave()
            eventually(lambda: view.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield server.url


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("OOM", "eviction"),
        ("READONLY", "role"),
        ("MASTERDOWN", "role"),
        ("MISCONF", "persistence"),
        ("CLUSTERDOWN", "cluster"),
        ("NOREPLICAS", None),
    ],
)
def test_what_every_lock_is_refused_for_is_one_finding_with_its_remedy(
    examined: Examined, code: str, check: str | None
) -> None:
    with state_of(code) as url:
        status, found = examined(url)
    assert status == 4
    assert not found.keys() & set(KINDS)
    said = "READONLY" if code == "MASTERDOWN" else code
    assert re.match(f"no lock can be acquired: .*{said} ", found["locks"]["text"])
    assert found["locks"]["advice"] == REMEDIES[said]
    assert REMEDIES[said] not in found["locks"]["text"]
    if check is not None:
        assert found[check]["severity"] == "problem"
        assert found[check]["advice"]
    assert "round trip" in found


def test_memory_that_is_nearly_full_is_a_warning(fresh_redis: RedisServer, examined: Examined) -> None:
    fresh_redis.admin.config_set("maxmemory", int(fresh_redis.admin.info("memory")["used_memory"] * 1.05))
    _, found = examined(fresh_redis.url)
    assert found["eviction"]["severity"] != "ok"
    assert "full" in found["eviction"]["text"]


def test_a_server_that_loads_its_data(examined: Examined) -> None:
    with RedisServer("enable-debug-command yes", "loading-process-events-interval-bytes 1024") as server:
        pipeline = server.admin.pipeline(transaction=False)
        for number in range(8000):
            pipeline.set(f"data:{number}", os.urandom(400))  # which cannot be compressed
        pipeline.execute()
        server.admin.config_set("key-load-delay", "2000")  # microseconds
        loading = Background(lambda: server.client(socket_timeout=60.0).execute_command("DEBUG", "RELOAD"))
        eventually(lambda: server.admin.info("persistence")["loading"] == 1)
        _, found = examined(server.url)
        server.kill()
        with pytest.raises(redis.RedisError):
            loading.result(60.0)
    assert (found["role"]["severity"], found["role"]["advice"]) == ("problem", REMEDIES["LOADING"])
    assert (found["locks"]["severity"], found["locks"]["advice"]) == ("problem", REMEDIES["LOADING"])


@pytest.fixture(scope="module")
def one_node() -> Iterator[RedisServer]:
    with RedisServer("cluster-enabled yes", "appendonly yes", "appendfsync always") as server, server.client() as view:
        view.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: view.cluster("info")["cluster_state"] == "ok")
        yield server


@pytest.mark.parametrize(
    ("command", "check"),
    [
        ("scan", "keys"),
        ("info", "settings"),
        ("eval", "version"),
        ("time", "round trip"),
        ("config|get", "persistence"),
        ("cluster|info", "cluster"),
        ("ping", None),
    ],
)
def test_a_refused_command_leaves_its_check_unknown(
    one_node: RedisServer, examined: Examined, command: str, check: str | None
) -> None:
    url = with_user(one_node, "~*", "&*", "+@all", f"-{command}")
    _, found = examined(url)
    unknown = {name: finding for name, finding in found.items() if finding["severity"] == "unknown"}
    if check is None:
        assert unknown == {}
    else:
        assert f"'{command}'" in unknown[check]["text"]
        assert unknown[check]["advice"] == f"ACL SETUSER app +{command}"
    assert len(found) > 10


def test_the_master_behind_sentinels_has_its_own_address(redis_server: RedisServer, examined: Examined) -> None:
    with RedisServer(f"sentinel monitor main 127.0.0.1 {redis_server.port} 1", sentinel=True) as sentinel:
        for url in (f"redis+sentinel://127.0.0.1:{sentinel.port}/main", f"redis://127.0.0.1:{sentinel.port}"):
            _, found = examined(f"{url}?decode_responses=true")
            servers = {finding["server"] for finding in found.values()} - {""}
            assert servers == {f"127.0.0.1:{redis_server.port}"}


def test_a_slot_without_a_master(examined: Examined) -> None:
    with Nodes() as nodes:
        for server in nodes.servers:
            server.admin.execute_command("CLUSTER", "DELSLOTS", 5)
        _, found = examined(f"redis+cluster://127.0.0.1:{nodes.servers[0].port}")
    assert found["cluster"]["severity"] == "problem"
    assert found["cluster"]["text"].startswith("1 of 16,384 slots have no master that answers")


def test_a_cluster_without_any_slot_says_so(refused: Refused) -> None:
    with RedisServer("cluster-enabled yes") as server:
        status, sentence = refused("doctor", "--redis", server.url)
    assert (status, REMEDIES["CLUSTERDOWN"] in sentence) == (1, True)


def test_findings_that_are_alike_are_one_line(
    redis_server: RedisServer, fresh_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--redis", redis_server.url, "--redis", fresh_redis.url])
    lines = capsys.readouterr().out.splitlines()
    places = f"[127.0.0.1:{redis_server.port}, 127.0.0.1:{fresh_redis.port}]"
    assert f"ok       role               the server is a master {places}" in lines
    assert f"ok       8 checks           {', '.join(KINDS)}: acquired, extended and released {places}" in lines


@pytest.mark.parametrize("code", ["MASTERDOWN", "MAXCLIENTS"])
def test_the_sentence_of_a_refusal_has_the_remedy(refused: Refused, code: str) -> None:
    with state_of(code) as url:
        status, sentence = refused("ls", "--redis", url)
    assert (status, REMEDIES[code] in sentence) == (1, True)
