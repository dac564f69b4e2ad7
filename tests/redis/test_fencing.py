"""Fences: a number that grows with every grant, whatever becomes of keys, so that the past can be refused."""

from __future__ import annotations

import pytest

from tests.support.backend import BOTH, Backend
from tests.support.callers import Caller
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.servers("real")


@BOTH
def test_every_grant_draws_a_larger_fence_where_one_is_asked_for(backend: Backend, me: Caller) -> None:
    lock, fences = me.locks.lock("report", fencing=True), []
    for _ in range(20):
        with lock:
            fences.append(lock.fence)
        assert lock.fence == fences[-1]  # which can still be read
    assert fences == sorted(set(fences))
    backend.view.flushall()
    with me.locks.lock("report") as lock:
        assert lock.fence is None
        assert backend.view.keys() == [b"report"]


def test_fences_grow_over_a_restart_with_nothing_saved(fresh_redis: RedisServer, fresh: Backend) -> None:
    lock, fences = fresh.context().lock("report", fencing=True), []
    for _ in range(2):
        with lock:
            fences.append(lock.fence or 0)
        fresh_redis.kill()
        fresh_redis.start()
    assert 0 < fences[0] < fences[1]
