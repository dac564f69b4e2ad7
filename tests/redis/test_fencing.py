"""Fences: a number that grows with every grant, whatever becomes of keys, so that the past can be refused."""

from __future__ import annotations

import pytest

from tests.support.backend import BOTH, Backend
from tests.support.callers import Caller
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockServerError
from wheel_lock.protocol.keys import fence_key

pytestmark = pytest.mark.servers("real")


class FencedRegister:
    """What a lock protects: it remembers the largest fence it has seen and refuses a smaller one."""

    def __init__(self) -> None:
        self.value: object = None
        self.fence = 0
        self.refused = 0

    def write(self, value: object, fence: int | None) -> bool:
        assert fence is not None
        if fence < self.fence:
            self.refused += 1
            return False
        self.value, self.fence = value, fence
        return True


def fence_of(lock: Lock) -> int:
    assert lock.fence is not None
    return lock.fence


def draw(context: LockContext, name: str | bytes = "report") -> int:
    with context.lock(name, fencing=True) as lock:
        return fence_of(lock)


def test_a_lock_without_fencing_has_no_fence_and_makes_no_second_key(backend: Backend, context: LockContext) -> None:
    with context.lock("report") as lock:
        assert lock.fence is None
        assert backend.view.keys() == [b"report"]


@BOTH
def test_every_grant_draws_a_larger_fence(me: Caller) -> None:
    lock, fences = me.locks.lock("report", fencing=True), []
    for _ in range(20):
        with lock:
            fences.append(lock.fence)
        assert lock.fence == fences[-1]  # which can still be read
    assert fences == sorted(set(fences))


def test_fences_grow_over_a_restart_with_nothing_saved(fresh_redis: RedisServer, fresh: Backend) -> None:
    context = fresh.context()
    last = draw(context)
    fresh_redis.kill()
    fresh_redis.start()
    assert draw(context) > last


def test_a_register_refuses_a_holder_that_comes_too_late(backend: Backend, context: LockContext) -> None:
    register = FencedRegister()
    slow = context.lock("report", timeout=0.1, renew=False, fencing=True)
    slow.acquire()
    with context.lock("report", fencing=True, retry_every=0.01) as quick:
        assert register.write("the quick one's", quick.fence)
        # The slow one has missed that its time is up.
        assert not register.write("the slow one's", slow.fence)
    assert register.value == "the quick one's"
    assert register.refused == 1


@pytest.mark.parametrize("content", ["text", "another type"])
def test_a_broken_fence_key_is_an_error_that_leaves_no_grant(real: Backend, content: str) -> None:
    if content == "text":
        real.view.set(fence_key(b"report"), "not a number")
    else:
        real.view.rpush(fence_key(b"report"), 1)
    context = real.context()
    lock = context.lock("report", timeout=30.0, fencing=True)
    with pytest.raises(LockServerError):
        lock.acquire()
    assert not lock.is_held
    eventually(lambda: not real.view.exists("report"), 5.0, "the name is free")
    real.view.delete(fence_key(b"report"))
    assert draw(context) > 0
