"""Where no server can be reached, or it can serve nothing: how soon callers get an error, and what it advises."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.support.backend import LONG_S
from tests.support.callers import Caller, NewCaller
from tests.support.ports import candidate_port
from tests.support.redis_server import RedisServer
from tests.support.tls import make_tls_files
from wheel_lock import LockContext, LockServerError, LockUnavailable
from wheel_lock.engine.requests.base import refused_by_server
from wheel_lock.protocol.server_errors import REMEDIES, ServerError

NEVER_S = 100 * LONG_S
HOST = "redis.invalid"
ROOT = Path(__file__).parents[2]


def fail_names(monkeypatch: pytest.MonkeyPatch, errors: Iterator[int]) -> None:
    """Have the look-ups of HOST end in these errors, and those behind the last one find this machine."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *more: Any, **named: Any) -> Any:
        if host == HOST and (error := next(errors, None)) is not None:
            raise socket.gaierror(error, "no such answer")
        return look_up("127.0.0.1" if host == HOST else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def acquiring(context: LockContext, new_caller: NewCaller, **terms: Any) -> Any:
    return new_caller(context).locks.lock("order:42", **terms).acquire


@pytest.mark.parametrize("terms", [{}, {"blocking": False}], ids=str)
@pytest.mark.parametrize("where", ["port", "host", "socket", "sentinels", "cluster"])
def test_a_first_connection_that_is_refused_is_reported_soon(
    new_caller: NewCaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, terms: dict[str, Any]
) -> None:
    fail_names(monkeypatch, repeat(socket.EAI_NONAME))
    unreachable = [("127.0.0.1", candidate_port()) for _ in range(2)]
    makers: dict[str, Callable[[], Any]] = {
        "port": lambda: redis.Redis(port=candidate_port()),
        "host": lambda: redis.Redis(host=HOST),
        "socket": lambda: redis.Redis(unix_socket_path=str(tmp_path / "none.sock")),
        "sentinels": lambda: redis.Sentinel(unreachable).master_for("main"),
        "cluster": lambda: redis.asyncio.RedisCluster(host="127.0.0.1", port=candidate_port()),
    }
    with LockContext(makers[where](), response_timeout=NEVER_S) as context:
        with pytest.raises(LockUnavailable, match=r"No connection to .*: .*Error -?\d+ connecting to"):
            acquiring(context, new_caller, **terms)()
        with pytest.raises(LockUnavailable):
            context.lock("order:42").locked()


def test_a_name_service_that_does_not_answer_for_the_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    fail_names(monkeypatch, iter([socket.EAI_AGAIN] * 4))
    with LockContext(redis.Redis(host=HOST, port=redis_server.port), response_timeout=NEVER_S) as context:
        assert context.lock("order:42").acquire(blocking=False)


def test_files_and_certificates_that_are_wrong_are_reported_at_once(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    with RedisServer(tls=files) as server:
        for ca, text in [
            (tmp_path / "none.pem", "the file of ssl_ca_certs cannot be read: .*No such file"),
            (make_tls_files(stranger).ca, "certificate verify failed"),
        ]:
            client = redis.Redis(port=server.tls_port, ssl=True, ssl_ca_certs=str(ca))
            with LockContext(client, response_timeout=NEVER_S) as context, pytest.raises(LockUnavailable, match=text):
                context.lock("order:42").acquire()


def test_a_cluster_that_is_not_complete_says_so_to_every_client() -> None:
    down = r"CLUSTERDOWN.*: the cluster has slots without a master"
    with RedisServer("cluster-enabled yes", "cluster-require-full-coverage no") as server:
        with server.client() as view, LockContext(view, response_timeout=1.0) as context:
            with pytest.raises(LockServerError, match=down):
                context.lock("order:42").acquire()
            view.execute_command("CLUSTER", "ADDSLOTS", *range(100))
        client = redis.RedisCluster(host="127.0.0.1", port=server.port, require_full_coverage=False)
        with LockContext(client, response_timeout=1.0) as context, pytest.raises(LockUnavailable, match=down):
            context.lock("order:42").acquire()


@pytest.mark.parametrize("text", ["MOVED 7349 127.0.0.1:7912", "MISCONF No disk.", "BUSY Redis is busy"])
def test_an_error_of_the_server_has_the_remedy_behind_its_own_words(text: str) -> None:
    error = refused_by_server(ServerError(text), "order:42")
    assert str(error) == f"{text.rstrip('.')}: {REMEDIES[error.code]} (lock 'order:42')"


def test_a_full_server_and_one_that_is_a_replica_say_what_to_do(me: Caller, fresh: Any) -> None:
    fresh.view.config_set("maxmemory", "1")
    for code in ("OOM", "READONLY"):
        with fresh.context() as context, pytest.raises(LockServerError, match=f"{code} .*: {REMEDIES[code]}"):
            context.lock("order:42").acquire()
        fresh.view.config_set("maxmemory", "0")
        fresh.view.replicaof("127.0.0.1", candidate_port())
    fresh.view.replicaof("NO", "ONE")


def test_the_runbook_has_every_remedy() -> None:
    text = (ROOT / "docs/operations/runbook.md").read_text()
    for code, remedy in REMEDIES.items():
        assert f"| `{code}` | {remedy} |" in text


@pytest.mark.parametrize(
    "wrong", ["redis://localhost:6379", redis.Sentinel([("localhost", 26379)])], ids=["url", "sentinel"]
)
def test_what_is_no_client_names_what_makes_one(wrong: Any) -> None:
    with pytest.raises(
        TypeError, match=r"use LockContext\.from_url\(url\)|use the client that its \.master_for\(name\) returns"
    ):
        LockContext(wrong)
