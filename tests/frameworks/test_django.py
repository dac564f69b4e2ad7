"""Django: `cache.lock()` of its own RedisCache and of django-redis is a renewed lock, of one context in a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support import django_settings
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockNotAcquired

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
