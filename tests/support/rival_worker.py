"""A benchmark worker that a test asks, and what the workers of all rivals must be able to do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import redis

from bench.rivals import jvm
from bench.rivals.toolchain import NotFetched
from bench.workers import Unable, Worker
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually


def build_or_skip(language: ModuleType) -> None:
    """Build the workers of a package of bench/rivals; skip where the machine lacks what that needs."""
    if (reason := language.missing()) is not None:
        pytest.skip(reason)
    try:
        language.build()
    except NotFetched as error:
        pytest.skip(str(error))


def little_jvm(program: str) -> list[str]:
    """Return the command line of a worker in a JVM that is quick to start, and not quick in the end."""
    java, *arguments = jvm.command(program)
    return [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", *arguments]


class RivalWorker(Worker):
    def go(self, argument: object) -> Any:
        return self.ask(f"go {argument}")

    def end(self, status: int = 0) -> None:
        """Close its standard input, and wait until it has ended with this status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait() == status


def started(command: Sequence[str], mode: str, url: str, **options: object) -> RivalWorker:
    return RivalWorker([*command, mode, url, json.dumps(options)])


def check_hold(command: Sequence[str], server: RedisServer, **options: object) -> None:
    """It holds, renews, reports a key that is deleted, and releases."""
    options = {"locks": 20, "timeout_s": 4.5, "prefix": "b:", "first": 5, **options}
    with server.client() as view, started(command, "hold", server.url, **options) as worker:
        worker.answer()
        names = {key.decode().rpartition("b:")[2]: key for key in _left(view)}
        assert set(names) == {str(number) for number in range(5, 25)}
        assert all(0 < view.pttl(key) <= 4500 for key in names.values())

        before = _renewals(view)
        eventually(lambda: _renewals(view) >= before + 20, message="each has been renewed")
        state = eventually(lambda: _state_after(20, worker), message="it counts the renewals")
        assert state["lost"] == 0
        assert state["heap"] is None or state["heap"] > 10_000

        view.delete(names["7"])
        eventually(lambda: worker.go("read")["lost"], message="the loss is reported")
        [loss] = worker.losses
        assert loss.index == 7
        assert loss.at > 0
        assert loss.reason
        assert worker.go("release") == {}
        assert _left(view) == []
        worker.end()


def _state_after(renewals: int, worker: RivalWorker) -> Any:
    """Return its state if it has counted so many renewals, or does not count them; else None."""
    state = worker.go("read")
    return state if state["renewed"] is None or state["renewed"] >= renewals else None


def _renewals(view: redis.Redis) -> int:
    stats = view.info("commandstats")  # Redisson renews many locks with one script
    return int(sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "pexpire")))


def _left(view: redis.Redis) -> list[bytes]:
    """Return what is there but for what Redisson leaves to expire, and by what python-redis-lock wakes."""
    return [key for key in view.scan_iter() if b"redisson_unlock_latch" not in key and b"signal" not in key]


def check_pairs(command: Sequence[str], server: RedisServer, callers: int, kind: str, spin: int = 0) -> None:
    """It acquires and releases, and leaves nothing behind."""
    options = {"callers": callers, "kind": kind, "timeout_s": 30.0, "warm_s": 0.05, "spin": spin}
    with server.client() as view, started(command, "pairs", server.url, **options) as worker:
        worker.answer()
        results = [worker.go(0.2)]
        assert results[0]["seconds"] >= 0.2
        while sum(result["pairs"] for result in results) < callers and len(results) < 100:
            results.append(worker.go(0.2))
        assert sum(result["pairs"] for result in results) >= callers
        assert _left(view) == []
        worker.end()


def check_handover(command: Sequence[str], server: RedisServer) -> None:
    """Two take turns, and do not overlap."""
    options = {"name": "h", "timeout_s": 30.0, "hold_s": 0.004, "warm_s": 0.05}
    with (
        started(command, "handover", server.url, **options) as one,
        started(command, "handover", server.url, **options) as other,
    ):
        assert one.answer() == other.answer() == {}
        for worker in (one, other):
            worker.tell("go 3")
        results = [worker.answer() for worker in (one, other)]
        turns = sorted(
            (granted, released, player)
            for player, result in enumerate(results)
            for granted, released in result["moments"]
        )
        assert len(turns) == 6
        assert all(after[0] >= before[1] for before, after in itertools.pairwise(turns))
        assert all(after[2] != before[2] for before, after in itertools.pairwise(turns))
        one.end()
        other.end()


def check_crowd(command: Sequence[str], server: RedisServer) -> None:
    """All waiters want one lock; it is free at the end, and can be asked again."""
    options = {"name": "c", "waiters": 5, "hold_s": 0.001, "timeout_s": 30.0, "warm_s": 0.05}
    with server.client() as view, started(command, "crowd", server.url, **options) as worker:
        worker.answer()
        for _ in range(2):
            result = worker.go(0.3)
            assert len(result["grants"]) == 5
            assert result["seconds"] >= 0.3
            eventually(lambda: view.dbsize() == 0, message="the lock is free")
        eventually(lambda: sum(worker.go(0.3)["grants"]) > 0, message="a worker has got it")
        eventually(lambda: view.dbsize() == 0, message="the lock is free at the end")
        worker.end()


def check_timers(command: Sequence[str]) -> None:
    """It measures timers."""
    options = {"timers": 50, "spread_s": 0.05, "ahead_s": 0.05, "idle_s": 0.05}
    with started(command, "wheel", "-", **options) as worker:
        worker.answer()
        for order in ("schedule", "cancel"):
            assert worker.go(order).keys() == {"ns", "cpu_ns"}
        due = worker.go("due")
        assert due.keys() == {"cpu_us", "p50_ms", "p99_ms", "max_ms"}
        assert due["p50_ms"] <= due["p99_ms"] <= due["max_ms"]
        idle = worker.go("idle")
        assert idle.keys() == {"empty", "pending"}
        assert all(found.keys() == {"cpu", "wake_ups"} for found in idle.values())
        worker.end()


def check_refusal(
    command: Sequence[str], url: str, mode: str, said: str, *, status: int = 0, **options: object
) -> None:
    """What it cannot do it says in one line."""
    with started(command, mode, url, timeout_s=30.0, warm_s=0.05, **options) as worker:
        with pytest.raises(Unable, match=said):
            worker.answer()
        worker.end(status)
