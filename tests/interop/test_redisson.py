"""A service in Java with Redisson's RLock, and the reentrant lock: they exclude each other, and wake each other."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.interop.redisson_peer import ANSWER_TIMEOUT_S, JavaError, JavaThread, LockPeer, class_path
from tests.support.backend import LONG_S, Backend, Losses, refused
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.standstill import Standstills, running
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LossReason

ROOT = Path(__file__).parents[2]
ALL_NAMES = pytest.mark.parametrize("name", ["order", "{order}", "größe:ж"], indirect=True)
ROUNDS = 5
QUIET_S = 0.2
"""For so long nothing happens where nothing is to happen."""
LATE_S = 0.5
SHORT_S = 1.6
"""A time-to-live that a test can sit out, and that a renewal prolongs in time although the machine stands still a while."""
ASKED_S = 0.05
"""After so long a waiter that listens has asked once more, and waits."""

pytestmark = [
    pytest.mark.servers("real"),
    pytest.mark.settings(fallback_interval=60.0),  # waiters hardly look by themselves
]
_numbers = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own: a thread of Java that a test has left waiting is in nobody's way."""
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
    """One whose waiters never look by themselves: its clock stands still."""
    return real.stepped_context()[0]


@pytest.fixture
def short_lived(java_classes: str, real: Backend) -> Iterator[LockPeer]:
    """A service of the test's own, whose locks outlive it for a short time only."""
    with LockPeer(java_classes, real.port, watchdog_s=SHORT_S) as peer:
        yield peer


def channel(name: str) -> str:
    return "redisson_lock__channel:" + (name if "{" in name else f"{{{name}}}")


def until_somebody_waits(view: redis.Redis, name: str) -> None:
    """Return when somebody listens for its release, and has found it taken after that."""
    eventually(lambda: dict(view.pubsub_numsub(channel(name))).get(channel(name).encode()), LONG_S)
    time.sleep(ASKED_S)


def times_asked(view: redis.Redis) -> int:
    """How often scripts have been run, by which a waiter asks."""
    commands = view.info("commandstats").items()
    return sum(stats["calls"] for command, stats in commands if command.startswith("cmdstat_eval"))


def wait_in_python(context: LockContext, name: str) -> Background[int]:
    """Begin to wait for it; the result is when it was got. Then it is released again."""

    def wait() -> int:
        lock = context.reentrant_lock(name)
        assert lock.acquire()
        got_ns = time.monotonic_ns()
        assert lock.release()
        return got_ns

    return Background(wait)


def seconds(nanoseconds: float) -> float:
    return nanoseconds / 1e9


# The clock


def test_java_and_python_read_the_same_clock(name: str, java: JavaThread) -> None:
    java.is_locked(name)  # the first command of all takes its time
    before_ns = time.monotonic_ns()
    answer = java.lock(name)
    after_ns = time.monotonic_ns()
    assert before_ns < answer.began_ns < answer.ended_ns < after_ns


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


def test_a_task_and_java_wake_each_other(name: str, java: JavaThread, patient: LockContext, view: redis.Redis) -> None:
    async def take_turns() -> None:
        lock = patient.asyncio.reentrant_lock(name)
        assert not await lock.acquire(blocking=False)
        unlocking = asyncio.create_task(asyncio.to_thread(unlock_when_waited_for))
        async with lock, lock:
            await unlocking
            assert not await asyncio.to_thread(java.try_lock, name)
            waiting = java.begin_lock(name)
            await asyncio.to_thread(until_somebody_waits, view, name)
            assert not waiting.done()
        await asyncio.wrap_future(waiting)

    def unlock_when_waited_for() -> None:
        until_somebody_waits(view, name)
        java.unlock(name)

    java.lock(name)
    asyncio.run(asyncio.wait_for(take_turns(), LONG_S))


@pytest.mark.slow
def test_threads_of_both_count_without_loss(name: str, peer: LockPeer, context: LockContext, view: redis.Redis) -> None:
    times, each = 50, 2

    def count() -> None:
        lock = context.reentrant_lock(name)
        for _ in range(times):
            with lock:
                view.set(number, int(view.get(number) or 0) + 1)

    number = f"{name}:count"
    in_java = [peer.thread().begin_count(name, times) for _ in range(each)]
    in_python = [Background(count) for _ in range(each)]
    for counting in in_python:
        counting.result()
    for answer in in_java:
        assert answer.result(ANSWER_TIMEOUT_S).value
    assert view.get(number) == b"%d" % (2 * each * times)


# Counts


def test_threads_of_java_pass_it_on(name: str, peer: LockPeer, java: JavaThread, context: LockContext) -> None:
    lock = context.reentrant_lock(name)
    java.lock(name)
    waiting = peer.thread().begin_lock(name)
    java.unlock(name)
    waiting.result(ANSWER_TIMEOUT_S)
    assert not lock.acquire(blocking=False)


# One wakes the other


@pytest.mark.slow
@ALL_NAMES
def test_java_wakes_python(name: str, java: JavaThread, patient: LockContext, view: redis.Redis) -> None:
    java.lock(name)
    waiting = wait_in_python(patient, name)  # which never looks by itself
    until_somebody_waits(view, name)
    assert not waiting.done
    java.unlock(name)
    waiting.result()


@pytest.mark.slow
@ALL_NAMES
def test_python_wakes_java(name: str, peer: LockPeer, context: LockContext, view: redis.Redis) -> None:
    lock = context.reentrant_lock(name)  # for 30 s, after which java would look by itself
    lock.acquire()
    waiting = peer.thread().begin_lock(name)
    until_somebody_waits(view, name)
    assert not waiting.done()
    lock.release()
    waiting.result(ANSWER_TIMEOUT_S)


def test_both_publish_the_same_message(name: str, java: JavaThread, context: LockContext, view: redis.Redis) -> None:
    with view.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(channel(name))
        listener.get_message(timeout=LONG_S)  # it is subscribed
        java.lock(name)
        java.unlock(name)
        in_java = listener.get_message(timeout=LONG_S)
        with context.reentrant_lock(name):
            pass
        assert listener.get_message(timeout=LONG_S) == in_java
        assert in_java is not None
        assert in_java["data"] == b"0"


@pytest.mark.slow
def test_only_the_message_wakes_them(name: str, java: JavaThread, patient: LockContext, view: redis.Redis) -> None:
    for_python, for_java = f"{name}:python", f"{name}:java"
    for each in (for_python, for_java):
        view.hset(each, "somebody", 1)
        view.pexpire(each, 30_000)
    before = times_asked(view)
    in_python, in_java = wait_in_python(patient, for_python), java.begin_lock(for_java)
    until_somebody_waits(view, for_python)
    until_somebody_waits(view, for_java)
    eventually(lambda: times_asked(view) >= before + 4, LONG_S, "each has asked before it listened, and then again")
    view.delete(for_python, for_java)
    time.sleep(QUIET_S)
    assert not in_python.done
    assert not in_java.done()
    assert view.publish(channel(for_python), "0") == 1
    assert view.publish(channel(for_java), "0") == 1
    in_python.result()
    in_java.result(ANSWER_TIMEOUT_S)


def test_a_closed_context_wakes_java(name: str, java: JavaThread, context: LockContext, view: redis.Redis) -> None:
    context.reentrant_lock(name).acquire()
    waiting = java.begin_lock(name)
    until_somebody_waits(view, name)
    context.close()
    waiting.result(ANSWER_TIMEOUT_S)


@pytest.mark.slow
def test_java_gets_its_turn_among_threads_of_python(name: str, java: JavaThread, context: LockContext) -> None:
    def pass_it_on() -> None:
        lock = context.reentrant_lock(name)
        while not enough.is_set():
            with lock:
                pass

    enough = threading.Event()
    passing = [Background(pass_it_on) for _ in range(4)]
    try:
        for _ in range(ROUNDS):
            java.lock(name)
            java.unlock(name)
    finally:
        enough.set()
    for thread in passing:
        thread.result()


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


@pytest.mark.slow
def test_a_lease_that_java_does_not_renew_is_waited_for_no_longer_than_it_lasts(
    name: str, java: JavaThread, context: LockContext, view: redis.Redis, standstills: Standstills
) -> None:
    locked = java.lock(name, lease_s=SHORT_S)
    looked, left_s = time.monotonic(), view.pttl(name) / 1000
    got_ns = wait_in_python(context, name).result()
    assert seconds(got_ns - locked.began_ns) >= SHORT_S
    assert running(looked, seconds(got_ns), standstills.seen) < left_s + LATE_S


# The end of a holder


@pytest.mark.slow
def test_java_is_killed_and_python_gets_it(
    name: str, short_lived: LockPeer, context: LockContext, standstills: Standstills
) -> None:
    short_lived.thread().lock(name)
    waiting = wait_in_python(context, name)
    time.sleep(1.2 * SHORT_S)
    assert not waiting.done
    killed = time.monotonic()
    short_lived.kill()
    assert running(killed, seconds(waiting.result()), standstills.seen) < SHORT_S + LATE_S


@pytest.mark.slow
def test_python_is_killed_and_java_gets_it(
    name: str, java: JavaThread, real: Backend, standstills: Standstills
) -> None:
    module = [sys.executable, "-W", "error", "-m", "tests.interop.reentrant_holder"]
    command = [*module, str(real.port), name, str(SHORT_S)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            waiting = java.begin_lock(name)
            time.sleep(1.2 * SHORT_S)
            assert not waiting.done()
            killed = time.monotonic()
        finally:
            holder.kill()
    got = seconds(waiting.result(ANSWER_TIMEOUT_S).ended_ns)
    assert running(killed, got, standstills.seen) < 2 * SHORT_S  # java does not say when it has stood still


# A loss


@pytest.mark.slow
def test_a_holder_is_told_that_java_has_forced_its_lock_open(name: str, java: JavaThread, context: LockContext) -> None:
    losses = Losses()
    lock = context.reentrant_lock(name, timeout=SHORT_S, on_lost=losses)
    lock.acquire()
    lock.acquire()
    assert java.force_unlock(name)
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S)
    assert not lock.is_held
    assert [(event.name, event.reason) for event in losses.all_told()] == [(name, LossReason.KEY_GONE)]
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.slow
def test_a_holder_is_told_that_java_has_taken_its_lock(name: str, java: JavaThread, context: LockContext) -> None:
    losses = Losses()
    # No renewal comes between the two calls, after which the key would be gone.
    lock = context.reentrant_lock(name, timeout=LONG_S, renew_every=SHORT_S, on_lost=losses)
    lock.acquire()
    assert java.force_unlock(name)
    assert java.try_lock(name)
    eventually(lambda: lock.lost is LossReason.TAKEN, LONG_S)
    assert [(event.name, event.reason) for event in losses.all_told()] == [(name, LossReason.TAKEN)]
    assert java.hold_count(name) == 1
    with pytest.raises(LockLost):
        lock.release()
    assert java.is_held(name)


def test_a_release_leaves_alone_what_java_has_taken(name: str, java: JavaThread, context: LockContext) -> None:
    lock = context.reentrant_lock(name, renew=False)
    lock.acquire()
    assert java.force_unlock(name)
    assert java.try_lock(name)
    with pytest.raises(LockLost):
        lock.release()
    assert java.hold_count(name) == 1


def test_force_unlock_wakes(
    name: str, java: JavaThread, context: LockContext, patient: LockContext, view: redis.Redis
) -> None:
    context.reentrant_lock(name).acquire()
    waiting = wait_in_python(patient, name)
    until_somebody_waits(view, name)
    assert java.force_unlock(name)
    waiting.result()
