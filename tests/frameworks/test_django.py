"""Django: `cache.lock()` of its own RedisCache and of django-redis is a renewed lock, of one context in a process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.interop.page import as_module
from tests.support import django_settings
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockNotAcquired
from wheel_lock.redis_lock import Lock as RedisLock

BACKENDS = ["RedisCache", "DjangoRedisCache"]


@pytest.fixture
def view(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture(params=BACKENDS)
def cache(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Any]:
    from django.core.cache import caches
    from django.core.cache.backends.redis import RedisCache as Base

    assert Base  # Django's own can be imported without settings, ours is imported by name
    backend = f"docs.examples.frameworks.django_locks.{request.param}"
    location = f"redis://127.0.0.1:{redis_server.port}/0"
    with django_settings.overridden(
        CACHES={"default": {"BACKEND": backend, "LOCATION": location, "KEY_PREFIX": "shop"}}
    ):
        cache = caches["default"]
        yield cache
        cache.lock_context.close()


def test_a_lock_of_the_cache_is_renewed_under_a_key_of_the_cache(cache: Any, view: redis.Redis) -> None:
    with cache.lock("report", timeout=2.0, renew_every=0.1) as lock:
        assert isinstance(lock, Lock)
        assert view.get("shop:1:report") == lock.token
        eventually(lambda: lock.renewals >= 2)
        with pytest.raises(LockNotAcquired), cache.lock("report", blocking=False):
            pass
        with cache.lock("report", version=2, blocking=False):
            assert view.exists("shop:2:report")
    assert not view.exists("shop:1:report")
    cache.set("report", "text")
    assert cache.get("report") == "text"


def test_threads_share_one_context_although_each_has_a_cache_object(cache: Any) -> None:
    from django.core.cache import caches

    def other() -> tuple[Any, LockContext]:
        cache = caches["default"]
        return cache, cache.lock_context

    others = [Background(other).result() for _ in range(3)]
    assert len({id(each) for each, _ in others} | {id(cache)}) == 4
    assert {id(context) for _, context in others} == {id(cache.lock_context)}


# The recipe of docs/guide/redis-py.md, with redis-py's lock in place of ours


@pytest.fixture
def recipe(redis_server: RedisServer) -> Iterator[Any]:
    from django.core.cache import caches

    ours = {"redis://127.0.0.1:6379": f"redis://127.0.0.1:{redis_server.port}"}
    with (
        as_module("myproject/redis_client.py"),
        as_module("myproject/settings.py", ours) as module,
        django_settings.overridden(CACHES=module.CACHES),
    ):
        yield caches["default"]


@pytest.mark.slow
def test_a_lock_of_the_recipes_cache_is_renewed(recipe: Any, redis_server: RedisServer) -> None:
    view = redis_server.client(db=1)
    with recipe.lock("report", timeout=2.0) as lock:
        assert isinstance(lock, RedisLock)
        time.sleep(2.5)
        assert lock.owned()
        assert view.keys() == [b":1:report"]
    assert not view.exists(":1:report")


def test_all_threads_and_clients_of_the_recipe_share_one_context(recipe: Any) -> None:
    from django.core.cache import caches

    def context() -> LockContext:
        client = caches["default"].client.get_client(write=True)
        clients.append(client)
        client.lock("report", timeout=30)
        return LockContext.shared(client)

    clients: list[Any] = []
    contexts = {id(Background(context).result()) for _ in range(3)}
    assert len({id(client) for client in clients}) == 3  # Django makes them per thread
    assert len(contexts) == 1
