"""The workers that need a JVM answer in every mode, with tiny numbers; what they find is not looked at."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from bench.rivals import jvm
from bench.rivals.toolchain import NotFetched
from tests.support.redis_server import RedisServer
from tests.support.rival_worker import build_or_skip
from tests.support.waiting import eventually

QUICK = {"warm_s": 0.0, "timeout_s": 30.0}
GO_S = "0.05"


class Program:
    """A worker, spoken to in the line protocol."""

    def __init__(self, program: str, mode: str, url: str, **options: object) -> None:
        self._process = subprocess.Popen(
            [*jvm.command(program), mode, url, json.dumps({**QUICK, **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.losses: list[list[str]] = []

    def read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        while line.startswith("lost "):
            self.losses.append(line.split(" ", 3)[1:])
            line = self._process.stdout.readline().rstrip("\n")
        return line

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"go {order}\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        word, _, text = self.read().partition(" ")
        assert word == "result", text
        found: dict[str, Any] = json.loads(text)
        return found

    def go(self, order: str) -> dict[str, Any]:
        self.tell(order)
        return self.result()

    def end(self) -> int:
        """Close its stdin, and return its exit status."""
        self._process.communicate(timeout=30.0)
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def built() -> None:
    build_or_skip(jvm)


@pytest.fixture(scope="module")
def server(built: None) -> Iterator[RedisServer]:
    with RedisServer("notify-keyspace-events Egx") as server:
        yield server


@pytest.mark.slow
class TestRedisson:
    def test_holds_renews_and_releases(self, server: RedisServer) -> None:
        client = server.client()
        client.config_resetstat()
        with Program("redisson", "hold", server.url, locks=20, first=5, timeout_s=3.0, listen=True) as program:
            assert program.read() == "up"
            assert {f"b:{index}" for index in range(5, 25)} == {str(key, "ascii") for key in client.scan_iter("b:*")}
            eventually(lambda: client.info("commandstats")["cmdstat_pexpire"]["calls"] >= 40)
            client.delete("b:7")
            eventually(lambda: program.go("read")["lost"] >= 1)
            found = program.go("read")
            assert found["renewed"] is None
            assert found["heap"] > 0
            assert ["7", "deleted"] in [[index, reason] for index, _, reason in program.losses]
            assert program.go("release") == {}
            assert not list(client.scan_iter("b:*"))
            assert program.end() == 0

    @pytest.mark.parametrize("kind", ["threads", "tasks"])
    def test_pairs(self, server: RedisServer, kind: str) -> None:
        with Program("redisson", "pairs", server.url, callers=3, kind=kind, spin=1) as program:
            assert program.read() == "up"
            eventually(lambda: program.go(GO_S)["pairs"] >= 3)
            found = program.go(GO_S)
            assert found["seconds"] >= float(GO_S)
            virtual = kind == "tasks" and int(jvm.java_version().split(".")[0]) >= 21
            assert found["callers"] == ("virtual threads" if virtual else "threads")
            assert program.end() == 0

    def test_two_processes_hand_over(self, server: RedisServer) -> None:
        with (
            Program("redisson", "handover", server.url, hold_s=0.001, warm_s=0.02) as one,
            Program("redisson", "handover", server.url, hold_s=0.001) as other,
        ):
            assert (one.read(), other.read()) == ("up", "up")
            one.tell("3")
            other.tell("3")
            moments = sorted(one.result()["moments"] + other.result()["moments"])
            assert len(moments) == 6
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(moments))
            assert (one.end(), other.end()) == (0, 0)

    def test_a_crowd(self, server: RedisServer) -> None:
        with Program("redisson", "crowd", server.url, waiters=5) as program:
            assert program.read() == "up"
            assert len(program.go(GO_S)["grants"]) == 5
            eventually(lambda: sum(program.go(GO_S)["grants"]) >= 5)
            assert program.end() == 0


@pytest.mark.slow
class TestNettysWheel:
    def test_measures_its_timers(self, built: None) -> None:
        with Program("netty-wheel", "wheel", "-", timers=50, spread_s=0.05, ahead_s=0.05, idle_s=0.05) as program:
            assert program.read() == "up"
            for order in ("schedule", "cancel"):
                assert program.go(order).keys() == {"ns", "cpu_ns"}
            assert program.go("due").keys() == {"cpu_us", "p50_ms", "p99_ms", "max_ms"}
            idle = program.go("idle")
            assert idle.keys() == {"empty", "pending"}
            assert all(found.keys() == {"cpu", "wake_ups"} for found in idle.values())
            assert program.end() == 0

    def test_says_what_it_has_not(self, built: None) -> None:
        with Program("netty-wheel", "hold", "-") as program:
            assert program.read() == "failed no hold"
            assert program.end() == 1


# --- Building ---


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that is the whole PATH, and no JDK but one that JAVA_HOME names."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr("shutil.which", lambda name: path if (path := tmp_path / name).exists() else None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setattr(jvm, "TARGET", tmp_path / "target")
    monkeypatch.setattr(jvm, "BUILT", tmp_path / "target/built")
    jvm._jdk.cache_clear()
    yield tmp_path
    jvm._jdk.cache_clear()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def write_jdk(path: Path, version: str) -> None:
    write(path / "jdk/bin/javac", "")
    write(path / "jdk/release", f'JAVA_VERSION="{version}"\n')


def test_what_is_missing_is_named(path: Path) -> None:
    assert jvm.missing() == "no JDK"
    write_jdk(path, "11.0.2")
    jvm._jdk.cache_clear()
    assert jvm.missing() == "no JDK"
    write_jdk(path, "17.0.15+6")
    jvm._jdk.cache_clear()
    assert jvm.missing() == "no Maven"
    assert jvm.java_version() == "17.0.15"
    write(path / "mvn", "")
    assert jvm.missing() is None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Could not transfer artifact org.redisson:redisson:pom:4.7.0", NotFetched),
        ("COMPILATION ERROR", RuntimeError),
    ],
)
def test_a_build_that_fails_says_why(path: Path, said: str, error: type[Exception]) -> None:
    write_jdk(path, "17.0.15")
    lines = ["WARNING: old", f"[ERROR] {said}", "[ERROR] ", "[ERROR] To see the full stack trace of the errors"]
    write(path / "mvn", "#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + "exit 1\n")
    with pytest.raises(error, match=rf":\n\[ERROR\] {said}$") as raised:
        jvm.build()
    assert type(raised.value) is error
    assert not jvm.BUILT.exists()
