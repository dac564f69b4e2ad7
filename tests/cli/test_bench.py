"""``wheel-lock bench``: figures or one clear sentence, and nothing left behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import Any

import pytest
import redis

from tests.cli.lock_commands import Refused
from tests.cli.program import interrupted, start
from tests.cli.test_demo import Terminal
from tests.support.background import Background
from tests.support.fixtures import fixture_of
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock.cli import main
from wheel_lock.cli.benchmark import bench
from wheel_lock.cli.benchmark.figures import Figures, rows, summary

pytestmark = pytest.mark.slow

PREFIX = "wheel-lock-bench:"
FIGURES = {
    "round_trip_p50_s", "round_trip_p99_s", "server_busy_cores", "held", "saturated", "pairs_per_s", "hand_over_p50_s",
    "client_locks", "server_locks", "lost", "left_at_server",
}  # fmt: skip
OF_HELD = {
    "locks", "renew_every_s", "renewed", "renewals_per_s", "lag_p50_s", "lag_p99_s", "client_cores",
    "client_us_per_renewal", "server_cores", "server_us_per_renewal",
}  # fmt: skip
USERS = ["app on >secret ~app:* ~wheel_lock:* &* +@all"]


guarded = fixture_of(lambda: RedisServer(password="secret", users=USERS), "module")
"""A server with a password, and with users who lack a right."""


def arguments(url: str, *more: str, seconds: float = 0.5, locks: int = 40) -> list[str]:
    return ["bench", url, "--seconds", f"{seconds}", "--locks", f"{locks}", *more]


def url_of(server: RedisServer, user: str) -> str:
    return f"redis://{user}:secret@127.0.0.1:{server.port}/0"


def left(server: RedisServer) -> int:
    return len(list(server.admin.scan_iter(f"{PREFIX}*")))


def measured(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    """Run with --json, expect success, and return the figures."""
    status = main([*command, "--json"])
    said = capsys.readouterr()
    assert said.err == ""
    found: dict[str, Any] = json.loads(said.out)
    assert status == 0, found
    assert found["ok"] is True
    assert found["lost"] == found["left_at_server"] == 0
    assert found["interrupted"] is found["trouble"] is None
    return found


def test_json_has_each_figure(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_FEW", 30)
    redis_server.admin.set("of-others", "1")
    found = measured(capsys, *arguments(redis_server.url, seconds=2.0))
    assert redis_server.admin.keys() == [b"of-others"]
    assert {name for name in FIGURES if found[name] is None} == set()
    assert found["not_measured"] == {}
    assert found["kind"] == "server"
    assert [held["locks"] for held in found["held"]] == [30, 40]
    for held in (*found["held"], found["saturated"]):
        assert held.keys() == OF_HELD
        assert None not in held.values()
        assert held["renewed"] > 0
    assert found["pairs_per_s"].keys() == {"1", "16"}


def test_a_pipe_gets_plain_lines_and_a_table(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(redis_server.url)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.isascii()
    for title in (
        "round trip",
        "40 held",
        "full speed",
        "1 thread",
        "16 threads",
        "hand-over",
        "client holds",
        "server holds",
    ):
        assert re.search(rf"^ +{title} +[0-9]", said.out, re.MULTILINE), said.out
    assert said.out.splitlines()[-1] == "No key is left behind."
    assert max(map(len, said.out.splitlines())) <= 120


def test_a_terminal_shows_a_bar_and_a_table(redis_server: RedisServer) -> None:
    text = Terminal(110, 40).shown_by(*arguments(redis_server.url))
    assert "━" in text
    assert "handing over" in text
    assert "✔ No key is left behind." in text


def test_names_are_those_that_the_user_may_write(
    guarded: RedisServer, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    status, sentence = refused(*arguments(url_of(guarded, "app")))
    assert status == 1
    assert f"--prefix, not '{PREFIX}'" in sentence
    found = measured(capsys, *arguments(url_of(guarded, "app"), "--prefix", "app:bench:"))
    assert found["prefix"].startswith("app:bench:")


class OldServer(RedisServer):
    """A server that does not know HELLO."""

    def __init__(self, *config_lines: str) -> None:
        super().__init__('rename-command HELLO ""', *config_lines)

    def client(self, **settings: Any) -> redis.Redis:
        return super().client(**{"protocol": 2, **settings})


def test_an_interruption_leaves_nothing_behind(redis_server: RedisServer) -> None:
    command = arguments(redis_server.url, "--json", seconds=10)
    status, found, err = interrupted(signal.SIGTERM, lambda: left(redis_server) == 40, *command)
    assert (status, err) == (143, "")
    assert left(redis_server) == 0
    assert found["interrupted"] == 143
    assert found["left_at_server"] == 0
    assert found["round_trip_p50_s"] is not None
    assert found["hand_over_p50_s"] is None


def test_a_signal_that_is_ignored_from_the_start_stays_ignored(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(bench.Bench, "_check", lambda self: seen.append(signal.getsignal(signal.SIGINT)))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main(arguments(redis_server.url, "--json"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIG_IGN]


def test_a_reader_of_stdout_that_ends_is_no_failure_of_the_server(redis_server: RedisServer) -> None:
    with start(*arguments(redis_server.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, "")


def test_a_server_that_fails_meanwhile(fresh_redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        eventually(lambda: left(fresh_redis) == 40)
        fresh_redis.kill()

    failing = Background(fail)
    assert main(arguments(fresh_redis.url, "--json", seconds=3)) == 1
    failing.result()
    said = capsys.readouterr()
    assert f"wheel-lock: the server 127.0.0.1:{fresh_redis.port} failed: " in said.err
    found = json.loads(said.out)
    assert found["left_at_server"] is None
    assert found["round_trip_p50_s"] is not None
    assert found["ok"] is False


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"left_at_server": 0}, 0, "No key is left behind."),
        ({"left_at_server": 3}, 1, "3 keys are left; they expire within 30 s."),
        ({"left_at_server": 0, "lost": 2}, 1, "2 locks were LOST meanwhile."),
        ({"trouble": "the server failed"}, 1, "Ended early"),
        ({"left_at_server": 0, "interrupted": 143}, 143, "Interrupted"),
        ({"interrupted": 130, "trouble": "the server failed"}, 130, "Which keys are left is not known"),
    ],
)
def test_the_summary_and_the_exit_status_agree(change: dict[str, Any], status: int, words: str) -> None:
    found = Figures(
        server="localhost:6379", kind="server", masters=1, redis_server=None, prefix="p:", locks=10, timeout_s=30.0,
        seconds=20.0, **change,
    )  # fmt: skip
    assert found.exit_status == status
    assert found.ok is (status == 0)
    assert words in summary(found)
    assert rows(found) == []
