"""``wheel-lock hold`` against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cli.program import interrupted, start
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock.cli import main

pytestmark = pytest.mark.slow

NEEDED = {
    "locks", "timeout_s", "seconds", "acquire_s", "locks_per_s", "held_at_end", "owned_at_end", "lost",
    "lost_by_reason", "unknown", "overdue", "renewed", "batches", "renewals_per_s", "renewal_lag_p50_s",
    "renewal_lag_p99_s", "renewal_lag_max_s", "renewal_slack_min_s", "wheel_cpu_s", "wheel_cores", "server_cpu_s",
    "server_cores", "client_us_per_renewal", "server_us_per_renewal", "rss_bytes_per_lock", "python", "redis_py",
    "redis_server",
}  # fmt: skip


TIMEOUT_S = 2.0  # longer than the stalls of a busy machine
ACT_S = 1.5  # time for an action and its effect


def arguments(
    url: str, *more: str, locks: int = 300, timeout: float = TIMEOUT_S, seconds: float = 0.8, renew_every: float = 0.2
) -> list[str]:
    terms = ["--timeout", f"{timeout}", "--seconds", f"{seconds}", "--renew-every", f"{renew_every}"]
    return ["hold", "--redis", url, "--locks", f"{locks}", *terms, *more]


@contextmanager
def soon(server: RedisServer, act: Callable[[list[bytes | str]], object]) -> Iterator[None]:
    """Once locks are held, have ``act(their keys)`` done by another thread."""
    acting = Background(lambda: act(eventually(lambda: sorted(server.admin.keys("hold:*")))))
    yield
    acting.result()


def test_json_is_all_that_is_on_stdout(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(redis_server.url, "--json", seconds=1.3)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert found.keys() >= NEEDED
    assert found["locks"] == found["acquired"] == found["held_at_end"] == found["owned_at_end"] == 300
    assert found["lost"] == found["unknown"] == found["overdue"] == found["left_at_server"] == 0
    assert found["lost_by_reason"] == {}
    assert found["renewed"] >= 600
    assert found["renewals_per_s"] == pytest.approx(found["renewed"] / found["held_s"], rel=1e-3)
    assert 0 < found["renewal_lag_p50_s"] <= found["renewal_lag_p99_s"] <= found["renewal_lag_max_s"]
    assert 0 < found["renewal_slack_min_s"] < TIMEOUT_S
    assert 0 < found["wheel_cores"] < 1
    assert 0 <= found["server_cores"] < 1
    assert found["ok"] is True


def test_deleted_keys_are_losses(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    with soon(redis_server, lambda keys: redis_server.admin.delete(*keys[:7])):
        assert main(arguments(redis_server.url, "--json", seconds=ACT_S)) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["lost"] == 7
    assert found["lost_by_reason"] == {"key gone": 7}
    assert found["held_at_end"] == found["owned_at_end"] == 293
    assert found["ok"] is False
    assert "key gone" in said.err


def test_a_server_gone_at_the_end_is_no_success(fresh_redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    with soon(fresh_redis, lambda keys: fresh_redis.kill()):
        assert main(arguments(fresh_redis.url, "--json", timeout=30, renew_every=10, seconds=ACT_S)) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["owned_at_end"] is None
    assert found["server_cpu_s"] is None
    assert f"127.0.0.1:{fresh_redis.port}" in found["trouble"]


def test_ctrl_c_ends_early_reports_and_releases(redis_server: RedisServer) -> None:
    client, seen = redis_server.admin, [round(TIMEOUT_S * 1000)] * 2

    def renewed() -> bool:
        if client.dbsize() == 300:
            seen.append(client.pttl(min(client.keys())))
        return seen[-1] > seen[-2]

    status, found, err = interrupted(signal.SIGINT, renewed, *arguments(redis_server.url, "--json", seconds=60))
    assert status == 130, err
    assert found["interrupted"] is True
    assert found["owned_at_end"] == 300
    assert found["lost"] == 0
    assert client.dbsize() == 0


def test_ctrl_c_while_acquiring_leaves_nothing_behind(redis_server: RedisServer) -> None:
    locks = 500_000  # seconds of work
    command = arguments(redis_server.url, "--json", locks=locks, timeout=60, renew_every=20, seconds=60)
    status, found, err = interrupted(signal.SIGINT, redis_server.admin.dbsize, *command)
    assert status == 130, err
    assert found["acquired"] == found["owned_at_end"] < locks
    assert found["left_at_server"] == redis_server.admin.dbsize() == 0


def test_a_server_is_all_that_it_needs_and_a_table_is_printed(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hold", "--redis", redis_server.url, "--seconds", "0.05"]) == 0
    assert redis_server.admin.dbsize() == 0
    said = capsys.readouterr().out
    assert "no key left behind" in said
    assert "least that was left of 3 s" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["lost", "0"] in [line[:2] for line in lines]
    assert ["owned", "at", "end", "2,000"] in [line[:4] for line in lines]


def test_sigterm_leaves_nothing_behind(redis_server: RedisServer) -> None:
    command = arguments(redis_server.url, timeout=60, renew_every=20, seconds=60)
    with start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            eventually(lambda: redis_server.admin.dbsize() == 300, 20.0)
            process.terminate()
            assert process.wait(20) == -signal.SIGTERM
        finally:
            process.kill()
    assert redis_server.admin.dbsize() == 0


def test_it_needs_no_stderr(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)  # as where it is closed
    assert main(arguments(redis_server.url, seconds=0.05)) == 0
