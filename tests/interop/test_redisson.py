"""A service in Java with Redisson's RLock, and the reentrant lock: they exclude each other, and wake each other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
import redis

from tests.interop.redisson_peer import ANSWER_TIMEOUT_S, JavaError, JavaThread, LockPeer, class_path
from tests.support.backend import LONG_S, Backend, refused
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext

ALL_NAMES = pytest.mark.parametrize("name", ["order", "{order}", "größe:ж"], indirect=True)
SHORT_S = 1.6
"""A time-to-live that a test can sit out, and that a renewal prolongs in time although the machine stands still a while."""
ASKED_S = 0.05
"""After so long a waiter that listens has asked once more, and waits."""

pytestmark = [
    pytest.mark.servers("real"),
    pytest.mark.settings(fallback_interval=60.0),  # waiters hardly poll
]
_numbers = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own: a Java thread that a test has left waiting blocks no other test."""
    return f"{getattr(request, 'param', 'order')}:{next(_numbers)}"


@pytest.fixture(scope="session")
def java_classes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    cache: pytest.Cache | None = getattr(request.config, "cache", None)  # where pytest runs with one
    kept_in = tmp_path_factory.mktemp("redisson") if cache is None else cache.mkdir("redisson")
    return class_path(kept_in)


@pytest.fixture(scope="module")
def peer(java_classes: str, shared_redis_server: RedisServer) -> Iterator[LockPeer]:
    with LockPeer(java_classes, shared_redis_server.port) as peer:
        yield peer


@pytest.fixture
def java(real: Backend, peer: LockPeer) -> JavaThread:
    return peer.thread()


@pytest.fixture
def patient(real: Backend) -> LockContext:
    """One whose waiters never poll: its clock stands still."""
    return real.stepped_context()[0]


@pytest.fixture
def short_lived(java_classes: str, real: Backend) -> Iterator[LockPeer]:
    """A service of the test's own, whose locks outlive it for a short time only."""
    with LockPeer(java_classes, real.port, watchdog_s=SHORT_S) as peer:
        yield peer


def channel(name: str) -> str:
    return "redisson_lock__channel:" + (name if "{" in name else f"{{{name}}}")


def until_a_caller_waits(view: redis.Redis, name: str) -> None:
    """Return when a caller has subscribed to its release, and has found it taken after that."""
    eventually(lambda: dict(view.pubsub_numsub(channel(name))).get(channel(name).encode()), LONG_S)
    time.sleep(ASKED_S)


def wait_in_python(context: LockContext, name: str) -> Background[int]:
    """Begin to wait for it; the result is when it was got. Then it is released again."""

    def wait() -> int:
        lock = context.reentrant_lock(name)
        assert lock.acquire()
        got_ns = time.monotonic_ns()
        assert lock.release()
        return got_ns

    return Background(wait)


# One excludes the other


@ALL_NAMES
def test_python_excludes_java(name: str, java: JavaThread, context: LockContext, view: redis.Redis) -> None:
    lock = context.reentrant_lock(name)
    assert lock.acquire()
    assert lock.acquire()
    held = view.hgetall(name)
    assert list(held.values()) == [b"1"]  # the count is ours to know
    assert not java.try_lock(name)
    assert java.is_locked(name)
    assert not java.is_held(name)
    assert not java.try_lock(name, wait_s=0.1)
    with pytest.raises(JavaError, match="not locked by current thread"):
        java.unlock(name)
    assert lock.is_held
    assert view.hgetall(name) == held
    assert lock.release() is False
    assert lock.is_held
    assert not java.try_lock(name)
    assert lock.release() is True
    assert not lock.is_held
    assert not java.is_locked(name)
    assert java.try_lock(name)


@ALL_NAMES
def test_java_excludes_python(name: str, java: JavaThread, context: LockContext, view: redis.Redis) -> None:
    lock = context.reentrant_lock(name)
    java.lock(name)
    java.lock(name)
    held = view.hgetall(name)
    assert list(held.values()) == [b"2"]
    assert not lock.acquire(blocking=False)
    assert refused(lock.acquire)
    assert view.hgetall(name) == held
    assert lock.locked()
    assert not lock.owned()
    assert java.hold_count(name) == 2
    java.unlock(name)
    assert not lock.acquire(blocking=False)
    assert java.hold_count(name) == 1
    java.unlock(name)
    assert not lock.locked()
    assert lock.acquire(blocking=False)
    assert java.hold_count(name) == 0


# One wakes the other


@pytest.mark.slow
@ALL_NAMES
def test_java_wakes_python(name: str, java: JavaThread, patient: LockContext, view: redis.Redis) -> None:
    java.lock(name)
    waiting = wait_in_python(patient, name)  # which never polls
    until_a_caller_waits(view, name)
    assert not waiting.done
    java.unlock(name)
    waiting.result()


@pytest.mark.slow
@ALL_NAMES
def test_python_wakes_java(name: str, peer: LockPeer, context: LockContext, view: redis.Redis) -> None:
    lock = context.reentrant_lock(name)  # for 30 s, after which java would poll
    lock.acquire()
    waiting = peer.thread().begin_lock(name)
    until_a_caller_waits(view, name)
    assert not waiting.done()
    lock.release()
    waiting.result(ANSWER_TIMEOUT_S)


# Renewal


@pytest.mark.slow
def test_our_renewal_keeps_what_java_waits_for(name: str, java: JavaThread, context: LockContext) -> None:
    lock = context.reentrant_lock(name, timeout=SHORT_S)
    lock.acquire()
    waiting = java.begin_lock(name)
    eventually(lambda: lock.renewals >= 4, LONG_S)  # by when it would have expired
    assert lock.is_held
    assert not waiting.done()
    released_ns = time.monotonic_ns()
    assert lock.release()
    assert waiting.result(ANSWER_TIMEOUT_S).ended_ns > released_ns


@pytest.mark.slow
def test_redissons_watchdog_keeps_what_python_waits_for(name: str, short_lived: LockPeer, context: LockContext) -> None:
    java = short_lived.thread()
    java.lock(name)
    waiting = wait_in_python(context, name)
    time.sleep(2 * SHORT_S)
    assert java.is_held(name)
    assert not waiting.done
    unlocked = java.unlock(name)
    assert waiting.result() > unlocked.began_ns
