"""celery-redbeat: the lock of its scheduler is ours when the app is set up as the documentation says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.exceptions import LockNotOwnedError

from tests.interop.page import as_module
from tests.support.backend import LONG_S
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock.redis_lock import Lock

DATABASE = 1
NAME = "redbeat::lock"
TIMEOUT_S = 2  # enough for renewals although the machine stalls for a while


@pytest.fixture
def view(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client(db=DATABASE)


@pytest.fixture
def new_beat(redis_server: RedisServer, view: redis.Redis) -> Iterator[Callable[[], Any]]:
    """Makes schedulers as `celery beat` does, up to the lock, which is acquired by `start`."""
    ours = {
        "redis://127.0.0.1:6379": f"redis://127.0.0.1:{redis_server.port}",
        "redbeat_lock_timeout = 15": f"redbeat_lock_timeout = {TIMEOUT_S}",
    }
    from redbeat.schedulers import RedBeatScheduler

    with as_module("myproject/redis_client.py"), as_module("myproject/celery.py", ours) as module:

        def make() -> Any:
            return RedBeatScheduler(app=module.app, lazy=True)

        yield make


def start(scheduler: Any) -> Any:
    from redbeat.schedulers import acquire_distributed_beat_lock

    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
    return scheduler


@pytest.mark.slow
def test_the_lock_of_a_beat_is_ours_and_outlives_long_ticks(new_beat: Callable[[], Any], view: redis.Redis) -> None:
    beat = start(new_beat())
    assert isinstance(beat.lock, Lock)
    time.sleep(1.2 * TIMEOUT_S)
    beat.tick()  # extends it, which fails where it has run out
    assert beat.lock.owned()
    beat.close()
    assert not view.exists(NAME)


@pytest.mark.slow
def test_a_second_beat_takes_over_at_once_when_the_first_ends(new_beat: Callable[[], Any], view: redis.Redis) -> None:
    first, second = start(new_beat()), new_beat()
    assert second.max_interval == 300  # its polling interval
    waiting = Background(lambda: view_of_lock(start(second)))
    time.sleep(1.2 * TIMEOUT_S)
    first.tick()
    assert not waiting.done
    began = time.monotonic()
    first.close()
    assert waiting.result() == view.get(NAME)
    assert time.monotonic() - began < LONG_S
    eventually(lambda: not view.exists(NAME), LONG_S)  # its thread has ended, so it is no longer renewed


def view_of_lock(scheduler: Any) -> bytes:
    """Its token: the lock is thread-local, so only the thread that has acquired it can tell."""
    token: bytes = scheduler.lock.local.token
    return token


def test_a_beat_that_has_lost_its_lock_stops(new_beat: Callable[[], Any], view: redis.Redis) -> None:
    beat = start(new_beat())
    view.set(NAME, "another beat")
    with pytest.raises(LockNotOwnedError):
        beat.tick()
    beat.close()
    assert view.get(NAME) == b"another beat"
