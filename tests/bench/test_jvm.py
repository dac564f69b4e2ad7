"""The workers that need a JVM answer in every mode, with tiny numbers; their figures are not checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.rivals import jvm
from bench.rivals.toolchain import NotFetched
from bench.workers import Unable
from tests.support import rival_worker
from tests.support.redis_server import RedisServer
from tests.support.rival_worker import RivalWorker, build_or_skip
from tests.support.waiting import eventually

QUICK = {"warm_s": 0.0, "timeout_s": 30.0}
GO_S = "0.05"
LITTLE = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")  # quick to start is better than quick in the end


def started(program: str, mode: str, url: str, **options: object) -> RivalWorker:
    java, *arguments = jvm.command(program)
    return rival_worker.started([java, *LITTLE, *arguments], mode, url, **{**QUICK, **options})


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
        with started("redisson", "hold", server.url, locks=20, first=5, timeout_s=3.0, listen=True) as program:
            program.answer()
            assert {f"b:{index}" for index in range(5, 25)} == {str(key, "ascii") for key in client.scan_iter("b:*")}
            eventually(lambda: client.info("commandstats")["cmdstat_pexpire"]["calls"] >= 40)
            client.delete("b:7")
            eventually(lambda: program.go("read")["lost"] >= 1)
            found = program.go("read")
            assert found["renewed"] is None
            assert found["heap"] > 0
            assert (7, "deleted") in [(loss.index, loss.reason) for loss in program.losses]
            assert program.go("release") == {}
            assert not list(client.scan_iter("b:*"))
            program.end()

    @pytest.mark.parametrize("kind", ["threads", "tasks"])
    def test_pairs(self, server: RedisServer, kind: str) -> None:
        with started("redisson", "pairs", server.url, callers=3, kind=kind, spin=1) as program:
            program.answer()
            eventually(lambda: program.go(GO_S)["pairs"] >= 3)
            found = program.go(GO_S)
            assert found["seconds"] >= float(GO_S)
            virtual = kind == "tasks" and int(jvm.java_version().split(".")[0]) >= 21
            assert found["callers"] == ("virtual threads" if virtual else "threads")
            program.end()

    def test_two_processes_hand_over(self, server: RedisServer) -> None:
        with (
            started("redisson", "handover", server.url, hold_s=0.001, warm_s=0.02) as one,
            started("redisson", "handover", server.url, hold_s=0.001) as other,
        ):
            assert one.answer() == other.answer() == {}
            one.tell("go 3")
            other.tell("go 3")
            moments = sorted(one.answer()["moments"] + other.answer()["moments"])
            assert len(moments) == 6
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(moments))
            one.end()
            other.end()

    def test_a_crowd(self, server: RedisServer) -> None:
        with started("redisson", "crowd", server.url, waiters=5) as program:
            program.answer()
            assert len(program.go(GO_S)["grants"]) == 5
            eventually(lambda: sum(program.go(GO_S)["grants"]) >= 5)
            program.end()


@pytest.mark.slow
class TestNettysWheel:
    def test_measures_its_timers(self, built: None) -> None:
        with started("netty-wheel", "wheel", "-", timers=50, spread_s=0.05, ahead_s=0.05, idle_s=0.05) as program:
            program.answer()
            for order in ("schedule", "cancel"):
                assert program.go(order).keys() == {"ns", "cpu_ns"}
            assert program.go("due").keys() == {"cpu_us", "p50_ms", "p99_ms", "max_ms"}
            idle = program.go("idle")
            assert idle.keys() == {"empty", "pending"}
            assert all(found.keys() == {"cpu", "wake_ups"} for found in idle.values())
            program.end()

    def test_says_what_it_has_not(self, built: None) -> None:
        with started("netty-wheel", "hold", "-") as program:
            with pytest.raises(Unable, match="no hold"):
                program.answer()
            program.end(1)


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
