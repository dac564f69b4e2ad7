"""What a demoted master refuses is carried out by the next one, in the words of whatever server the tests run against."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.background import Background
from tests.support.waiting import eventually
from tests.topology.watched_master import Watched
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

TERMS: dict[str, Any] = {"timeout": 60.0, "thread_local": False}


def held(lock: Any) -> Any:
    """Acquire a lock; return it."""
    assert lock.acquire()
    return lock


def extend(context: LockContext, kept: list[Any]) -> Callable[[], object]:
    lock = held(context.lock("a", **TERMS))
    return lambda: lock.extend(1.0)


def release(context: LockContext, kept: list[Any]) -> Callable[[], object]:
    locks = [context.lock("a", **TERMS), context.fair_lock("b", **TERMS), context.semaphore("c", 1, **TERMS)]
    locks = [held(lock) for lock in locks]
    return lambda: [lock.release() for lock in locks]


def release_many(context: LockContext, kept: list[Any]) -> Callable[[], object]:
    locks = context.acquire_many(["a", "b"], timeout=60.0)
    return lambda: context.release_many(locks.values()) or not context.lock("a").locked()


def acquire(context: LockContext, kept: list[Any]) -> Callable[[], object]:
    return context.lock("a", fencing=True, **TERMS).acquire


def acquire_many(context: LockContext, kept: list[Any]) -> Callable[[], object]:
    def work() -> bool:
        kept.append(context.acquire_many(["a", "b"], timeout=60.0))  # a lock that is collected is abandoned
        return all(kept[-1].values())

    return work


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched(down_after_ms=60000) as watched:
        yield watched


@pytest.mark.parametrize("begin", [extend, release, release_many, acquire, acquire_many], ids=lambda f: f.__name__)
def test_it_is_carried_out_when_there_is_a_master_again(
    watched: Watched, begin: Callable[[LockContext, list[Any]], Callable[[], object]]
) -> None:
    master = watched.master.client()
    master.flushall()
    with LockContext(watched.client()) as context:
        work = begin(context, [])
        assert not context.lock("connected").locked()
        master.replicaof("127.0.0.1", "1")
        try:
            doing = Background(work)
            time.sleep(0.3)
            assert not doing.done
        finally:
            master.replicaof("NO", "ONE")
        assert doing.result()
    eventually(lambda: not [key for key in master.keys("*") if b"fence" not in key])
