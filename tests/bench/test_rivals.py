"""Each implementation in Python holds locks, renews them, can be read, hears of a loss if it can, and releases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench import rivals
from bench.rivals import Rival, in_python
from tests.support import rival_worker
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

RIVALS = {rival.name: rival for rival in in_python()}
KEEPING = {name: rival for name, rival in RIVALS.items() if "hold" in rival.modes}
COMPARED = {name: rival for name, rival in RIVALS.items() if "pairs" in rival.modes}
WITH_TASKS = ("wheel_lock", "redis-py, Lock", "pottery")


@pytest.fixture
def command(rival: Rival) -> Sequence[str]:
    if (why := rival.missing()) is not None:
        pytest.skip(why)
    return rival.command()


@pytest.mark.parametrize("rival", KEEPING.values(), ids=KEEPING)
def test_locks_are_held_and_renewed_and_released(command: Sequence[str], fresh_redis: RedisServer) -> None:
    rival_worker.check_hold(command, fresh_redis)


@pytest.mark.parametrize("rival", COMPARED.values(), ids=COMPARED)
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_callers_acquire_and_release(rival: Rival, command: Sequence[str], kind: str, fresh_redis: RedisServer) -> None:
    if kind == "tasks" and rival.name not in WITH_TASKS:
        rival_worker.check_refusal(command, fresh_redis.url, "pairs", "no tasks", callers=4, kind=kind)
    else:
        rival_worker.check_pairs(command, fresh_redis, 20, kind)


def test_a_package_that_is_not_installed_is_a_rival_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rivals.IMPLEMENTATIONS, "pottery", lambda: rivals._load("no_such_module:Redlock"))
    rival = next(rival for rival in in_python() if rival.name == "pottery")
    assert rival.missing() == "No module named 'no_such_module'"
