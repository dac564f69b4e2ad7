"""Each implementation in Python holds locks, renews them, can be read, hears of a loss if it can, and releases."""

from __future__ import annotations

import json

import pytest
import redis

from bench import rivals
from bench.rivals import Rival, in_python
from bench.workers import Worker
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

RIVALS = {rival.name: rival for rival in in_python()}
KEEPING = {name: rival for name, rival in RIVALS.items() if "hold" in rival.modes}
COMPARED = {name: rival for name, rival in RIVALS.items() if "pairs" in rival.modes}
WITH_TASKS = ("wheel_lock", "redis-py, Lock", "pottery")
LOCKS = 5
TIMEOUT_S = 3.0


def started(rival: Rival, mode: str, server: RedisServer, **options: object) -> Worker:
    if (why := rival.missing()) is not None:
        pytest.skip(why)
    return Worker([*rival.command(), mode, server.url, json.dumps({"timeout_s": TIMEOUT_S} | options)])


def held(client: redis.Redis) -> dict[int, bytes]:
    """Return the key of each lock by its number, whatever a package puts before the name."""
    keys = [key for key in client.scan_iter(match="*b:*") if b"signal" not in key]  # python-redis-lock wakes by these
    return {int(key.rpartition(b":")[2]): key for key in keys}


@pytest.mark.parametrize("rival", KEEPING.values(), ids=KEEPING)
def test_locks_are_held_and_renewed_and_released(rival: Rival, fresh_redis: RedisServer) -> None:
    client = fresh_redis.client()
    with started(rival, "hold", fresh_redis, locks=LOCKS, prefix="b:") as worker:
        worker.answer()
        keys = held(client)
        assert keys.keys() == set(range(LOCKS))
        assert all(0 < client.pttl(key) <= TIMEOUT_S * 1000 for key in keys.values())
        # More than three thirds of the timeout have passed: without a renewal they would be gone.
        eventually(lambda: worker.ask("go read")["renewed"] >= 4 * LOCKS, timeout_s=30)
        assert held(client) == keys
        assert not worker.losses
        client.delete(keys[3])
        eventually(lambda: worker.ask("go read")["lost"], timeout_s=30)
        assert [loss.index for loss in worker.losses] == [3]
        assert worker.losses[0].reason
        assert worker.ask("go release") == {}
        assert held(client) == {}


@pytest.mark.parametrize("rival", COMPARED.values(), ids=COMPARED)
@pytest.mark.parametrize(("kind", "callers"), [("threads", 20), ("tasks", 20)])
def test_callers_acquire_and_release(rival: Rival, kind: str, callers: int, fresh_redis: RedisServer) -> None:
    with started(rival, "pairs", fresh_redis, kind=kind, callers=callers, warm_s=0.1) as worker:
        if kind == "tasks" and rival.name not in WITH_TASKS:
            with pytest.raises(RuntimeError, match="no tasks"):
                worker.answer()
            return
        worker.answer()
        found = [worker.ask("go 0.3", 60.0)]
        while sum(one["pairs"] for one in found) < callers and len(found) < 100:
            found.append(worker.ask("go 0.3", 60.0))
        assert sum(one["pairs"] for one in found) >= callers


def test_a_package_that_is_not_installed_is_a_rival_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rivals.IMPLEMENTATIONS, "pottery", lambda: rivals._load("no_such_module:Redlock"))
    rival = next(rival for rival in in_python() if rival.name == "pottery")
    assert rival.missing() == "No module named 'no_such_module'"
