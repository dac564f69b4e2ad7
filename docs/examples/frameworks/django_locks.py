"""Django: cache backends whose ``cache.lock(name)`` is a renewed lock, for Django's own RedisCache and for django-redis."""

from __future__ import annotations

from typing import Any

import django_redis.cache
from django.core.cache.backends import redis as django_cache

from wheel_lock import Lock, LockContext


class LockMixin:
    """Adds locks to a cache backend. All threads of a process share one context for each server."""

    def lock(self, name: str, version: int | None = None, timeout: float = 30.0, **terms: Any) -> Lock:
        """Return a lock, not yet acquired; ``terms`` are those of ``LockContext.lock``.

        The key of the lock is made as all keys of the cache are, with its prefix and version.
        """
        key: str = self.make_key(name, version)  # type: ignore[attr-defined]  # Django's
        return self.lock_context.lock(key, timeout, **terms)

    @property
    def lock_context(self) -> LockContext:
        """The context that belongs to the connection pool of the cache."""
        return LockContext.shared(self.lock_client())

    def lock_client(self) -> Any:
        """Return a client of the server that the cache writes to."""
        raise NotImplementedError


class _SharedPools(django_cache.RedisCacheClient):
    """Django makes a cache object for each thread, and a pool for each of them; here threads share the pools."""

    _all_pools: dict[str, dict[int, Any]] = {}  # noqa: RUF012

    def __init__(self, servers: list[str], **options: Any) -> None:
        super().__init__(servers, **options)
        self._pools = self._all_pools.setdefault(repr((servers, sorted(options.items()))), {})


class RedisCache(LockMixin, django_cache.RedisCache):
    """Django's RedisCache with locks."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._class = _SharedPools

    def lock_client(self) -> Any:
        return self._cache.get_client(write=True)


class DjangoRedisCache(LockMixin, django_redis.cache.RedisCache):
    """The cache of django-redis with locks; its pools are shared by all threads already."""

    def lock_client(self) -> Any:
        return self.client.get_client(write=True)
