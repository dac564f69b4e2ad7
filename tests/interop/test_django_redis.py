"""django-redis: `cache.lock()` makes our locks when it is configured as the documentation says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.cache import caches

from tests.interop.page import as_module
from tests.support import django_settings
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext
from wheel_lock.redis_lock import Lock

DATABASE = 1


@pytest.fixture(scope="module")
def configured(shared_redis_server: RedisServer) -> Iterator[None]:
    ours = {"redis://127.0.0.1:6379": f"redis://127.0.0.1:{shared_redis_server.port}"}
    with (
        as_module("myproject/redis_client.py"),
        as_module("myproject/settings.py", ours) as module,
        django_settings.overridden(CACHES=module.CACHES),
    ):
        yield


@pytest.fixture
def view(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client(db=DATABASE)


@pytest.fixture
def cache(configured: None, view: redis.Redis) -> Any:
    return caches["default"]


@pytest.mark.slow
def test_a_cache_lock_is_ours_and_is_renewed(cache: Any, view: redis.Redis) -> None:
    with cache.lock("report", timeout=2.0) as lock:
        assert isinstance(lock, Lock)
        time.sleep(2.5)
        assert lock.owned()
        assert view.keys() == [b":1:report"]
    assert not view.exists(":1:report")


def test_all_threads_and_clients_share_one_context(cache: Any) -> None:
    def context() -> LockContext:
        client = caches["default"].client.get_client(write=True)
        clients.append(client)
        client.lock("report", timeout=30)
        return LockContext.shared(client)

    clients: list[Any] = []
    contexts = {id(Background(context).result()) for _ in range(3)}
    assert len({id(client) for client in clients}) == 3  # Django makes them per thread
    assert len(contexts) == 1
