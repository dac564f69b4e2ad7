"""redis-py's own Lock on the same names: the two exclude each other, so a service can move over bit by bit."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.exceptions import LockError, LockNotOwnedError

from tests.redis.support import LONG_S, Backend, Background, token_of
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LossReason


def test_redis_py_waits_for_ours(backend: Backend, context: LockContext) -> None:
    theirs = backend.view.lock("order:42", timeout=30.0, sleep=0.01)
    with context.lock("order:42"):
        assert theirs.locked()
        assert not theirs.owned()
        assert not theirs.acquire(blocking=False)
        waiting = Background(lambda: theirs.acquire(blocking=True))
        time.sleep(0.05)
        assert not waiting.done
    assert waiting.result()
    assert theirs.locked()


def test_ours_waits_for_redis_py(backend: Backend, context: LockContext) -> None:
    theirs = backend.view.lock("order:42", timeout=30.0, thread_local=False)
    ours = context.lock("order:42", retry_every=0.01, thread_local=False)
    with theirs:
        assert ours.locked()
        assert not ours.owned()
        assert not ours.acquire(blocking=False)
        waiting = Background(ours.acquire)
        time.sleep(0.05)
        assert not waiting.done
    assert waiting.result()
    assert ours.owned()
    ours.release()


def test_ours_takes_over_when_redis_pys_lock_expires(backend: Backend, context: LockContext) -> None:
    theirs = backend.view.lock("order:42", timeout=0.2)
    assert theirs.acquire()
    with context.lock("order:42", retry_every=0.01) as ours:
        with pytest.raises(LockNotOwnedError):
            theirs.release()
        assert ours.owned()


def test_redis_py_takes_over_when_ours_expires(backend: Backend, context: LockContext) -> None:
    ours = context.lock("order:42", timeout=0.2, renew=False)
    ours.acquire()
    with backend.view.lock("order:42", timeout=30.0, sleep=0.01) as theirs:
        with pytest.raises(LockLost):
            ours.release()
        assert theirs.owned()


def test_ours_is_renewed_under_the_eyes_of_redis_py(backend: Backend, context: LockContext) -> None:
    theirs = backend.view.lock("order:42", timeout=30.0)
    with context.lock("order:42", timeout=3.0, renew_every=0.1) as ours:
        while ours.renewals < 4:
            assert not theirs.acquire(blocking=False)
            time.sleep(0.02)


def test_what_redis_py_takes_by_force_is_lost_and_left_alone(backend: Backend, context: LockContext) -> None:
    ours = context.lock("order:42", timeout=3.0, renew_every=0.1)
    ours.acquire()
    backend.view.delete("order:42")
    with backend.view.lock("order:42", timeout=30.0) as theirs:
        eventually(lambda: ours.lost, LONG_S)
        assert ours.lost is LossReason.TAKEN
        assert theirs.owned()
        with pytest.raises(LockLost):
            ours.release()
        assert theirs.owned()


def test_bulk_passes_over_what_redis_py_holds(backend: Backend, context: LockContext) -> None:
    with backend.view.lock("shard:1", timeout=30.0) as theirs:
        locks = context.acquire_many([f"shard:{number}" for number in range(3)])
        assert [name for name, lock in locks.items() if lock is None] == ["shard:1"]
        context.release_many(locks.values())
        assert theirs.owned()


def test_whoever_knows_the_token_can_release_on_either_side(backend: Backend, context: LockContext) -> None:
    ours = context.lock("order:42", timeout=30.0)
    ours.acquire(token="handed-over")
    theirs = backend.view.lock("order:42", timeout=30.0, thread_local=False)
    theirs.local.token = token_of(ours)
    assert theirs.owned()
    theirs.release()
    with pytest.raises(LockLost):
        ours.release()


def test_errors_can_be_caught_as_redis_pys(backend: Backend, context: LockContext) -> None:
    for lock in (backend.view.lock("order:42", timeout=30.0), context.lock("order:42", timeout=30.0)):
        with pytest.raises(LockError):
            lock.release()
        lock.acquire()
        backend.view.delete("order:42")
        with pytest.raises(LockNotOwnedError):
            lock.release()


def test_the_seven_methods_of_redis_py_mean_the_same(backend: Backend, context: LockContext) -> None:
    def tour(lock: Any) -> list[object]:
        seen: list[object] = [lock.locked(), lock.owned(), lock.acquire(blocking=False), lock.locked(), lock.owned()]
        seen += [lock.extend(10), round(backend.view.pttl("order:42") / 10_000)]
        seen += [lock.extend(20, replace_ttl=True), round(backend.view.pttl("order:42") / 10_000)]
        seen += [lock.reacquire(), round(backend.view.pttl("order:42") / 10_000)]
        lock.release()
        seen += [lock.locked(), lock.owned(), lock.acquire(token="x"), backend.view.get("order:42")]
        lock.release()
        return seen

    ours = context.lock("order:42", timeout=30.0)
    assert tour(ours) == tour(backend.view.lock("order:42", timeout=30.0))
