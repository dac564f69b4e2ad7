"""The codes of the errors that the server at hand answers with: plain, raised in a script, and caught in a script."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import hiredis
import pytest
import redis

from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock.protocol.resp import command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError

LONG_S = 20.0
RAISED = b"return redis.call(unpack(ARGV))"
CAUGHT = b"local reply = redis.pcall(unpack(ARGV)) if type(reply) == 'table' then return reply.err end return reply"


class Wire:
    """A connection that shows error replies as the engine sees them."""

    def __init__(self, server: RedisServer, *login: bytes) -> None:
        self._sock = socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S)
        self._reader = hiredis.Reader(replyError=ServerError, notEnoughData=NotImplemented)
        if login:
            assert self.ask(b"AUTH", *login) == b"OK"

    def ask(self, *arguments: bytes) -> object:
        self._sock.sendall(command(*arguments))
        while (reply := self._reader.gets()) is NotImplemented:
            self._reader.feed(self._sock.recv(1 << 16))
        return reply

    def codes(self, *arguments: bytes) -> list[str]:
        """The codes with which a command is refused: on its own, raised in a script, caught in one."""
        caught = self.ask(b"EVAL", CAUGHT, b"0", *arguments)
        found = [self.ask(*arguments), self.ask(b"EVAL", RAISED, b"0", *arguments)]
        found.append(ServerError(caught.decode()) if isinstance(caught, bytes) else caught)
        return [reply.code if isinstance(reply, ServerError) else repr(reply) for reply in found]

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def wire(fresh_redis: RedisServer) -> Iterator[Wire]:
    wire = Wire(fresh_redis)
    yield wire
    wire.close()


def test_a_key_of_another_type(fresh_redis: RedisServer, wire: Wire) -> None:
    fresh_redis.client().hset("data", "field", "value")
    assert wire.codes(b"GET", b"data") == ["WRONGTYPE"] * 3


@pytest.mark.parametrize(
    ("setting", "code"), [({"maxmemory": 1}, "OOM"), ({"min-replicas-to-write": 1}, "NOREPLICAS")], ids=["OOM", "few"]
)
def test_writes_that_are_not_taken(fresh_redis: RedisServer, wire: Wire, setting: dict[str, int], code: str) -> None:
    for name, value in setting.items():
        fresh_redis.client().config_set(name, value)
    assert wire.codes(b"SET", b"a", b"b") == [code] * 3


@pytest.mark.parametrize("asked", [(b"PEXPIRE", b"app:a", b"1"), (b"GET", b"elsewhere")], ids=["command", "key"])
def test_a_right_that_is_missing(fresh_redis: RedisServer, asked: tuple[bytes, ...]) -> None:
    fresh_redis.client().execute_command("ACL", "SETUSER", "app", "on", ">secret", "~app:*", "+@all", "-pexpire")
    wire = Wire(fresh_redis, b"app", b"secret")
    assert wire.codes(*asked) == ["NOPERM"] * 3
    wire.close()


def test_a_script_that_is_not_known(wire: Wire) -> None:
    answer = wire.ask(b"EVALSHA", b"f" * 40, b"0")
    assert isinstance(answer, ServerError)
    assert answer.code == "NOSCRIPT"


def test_a_replica_and_one_without_its_master(fresh_redis: RedisServer, wire: Wire) -> None:
    with RedisServer() as master:
        view = fresh_redis.client()
        view.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
        eventually(lambda: view.info("replication")["master_link_status"] == "up", LONG_S)
        assert wire.codes(b"SET", b"a", b"b") == ["READONLY"] * 3
        view.config_set("replica-serve-stale-data", "no")
    eventually(lambda: view.info("replication")["master_link_status"] == "down", LONG_S)
    assert wire.codes(b"GET", b"a")[:2] == ["MASTERDOWN"] * 2


def test_a_node_of_a_cluster_that_is_not_complete() -> None:
    with RedisServer("cluster-enabled yes", "cluster-require-full-coverage no") as server:
        wire, view = Wire(server), server.client()
        assert wire.codes(b"GET", b"a") == ["CLUSTERDOWN", *[NOT_LOCAL] * 2]
        view.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(lambda: b"cluster_state:ok" in _cluster_info(view), LONG_S)
        answer = wire.ask(b"MGET", b"a", b"b")
        assert isinstance(answer, ServerError)
        assert answer.code == "CROSSSLOT"
        view.config_set("cluster-require-full-coverage", "yes")
        view.execute_command("CLUSTER", "DELSLOTS", 0)
        eventually(lambda: b"cluster_state:fail" in _cluster_info(view), LONG_S)
        assert wire.codes(b"GET", b"a") == ["CLUSTERDOWN"] * 3
        wire.close()


def _cluster_info(view: redis.Redis) -> bytes:
    found = view.execute_command("CLUSTER", "INFO")
    return found if isinstance(found, bytes) else "\n".join(f"{k}:{v}" for k, v in found.items()).encode()
