"""What a demoted master refuses is carried out by the next one, in the words of whatever server the tests run against."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.background import Background
from tests.support.waiting import eventually
from tests.topology.watched_master import Watched
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

LEASE_S = 60.0

Begun = Callable[[], object]


def extend(context: LockContext) -> Begun:
    lock = context.lock("a", timeout=LEASE_S, thread_local=False)
    assert lock.acquire()
    return lambda: lock.extend(1.0)


def extend_to(context: LockContext) -> Begun:
    lock = context.lock("a", timeout=LEASE_S, thread_local=False)
    assert lock.acquire()
    return lambda: lock.extend(20.0, replace_ttl=True)


def release(context: LockContext) -> Begun:
    lock = context.lock("a", timeout=LEASE_S, thread_local=False)
    assert lock.acquire()
    return lambda: lock.release() or not lock.locked()


def release_fair(context: LockContext) -> Begun:
    lock = context.fair_lock("a", timeout=LEASE_S, thread_local=False)
    assert lock.acquire()
    return lambda: lock.release() or not lock.locked()


def release_permit(context: LockContext) -> Begun:
    permit = context.semaphore("a", 1, timeout=LEASE_S, thread_local=False)
    assert permit.acquire()
    return lambda: permit.release() or not permit.locked()


def release_many(context: LockContext) -> Begun:
    locks = context.acquire_many(["a", "b"], timeout=LEASE_S)
    return lambda: context.release_many(locks.values()) or not context.lock("a").locked()


def acquire(context: LockContext) -> Begun:
    return context.lock("a", timeout=LEASE_S, thread_local=False, fencing=True).acquire


def acquire_many(context: LockContext) -> Begun:
    kept: list[object] = []

    def work() -> bool:
        locks = context.acquire_many(["a", "b"], timeout=LEASE_S)
        kept.append(locks)
        return all(locks.values())

    return work


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched(down_after_ms=60000) as watched:
        yield watched


@pytest.mark.parametrize(
    "begin",
    [extend, extend_to, release, release_fair, release_permit, release_many, acquire, acquire_many],
    ids=lambda f: f.__name__,
)
def test_it_is_carried_out_when_there_is_a_master_again(
    watched: Watched, begin: Callable[[LockContext], Begun]
) -> None:
    master = watched.master.client()
    master.flushall()
    with LockContext(watched.client()) as context:
        work = begin(context)
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
