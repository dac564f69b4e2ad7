"""Waiting for a lock that somebody else holds: how long, how often, what a Ctrl-C leaves behind, and dead servers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, REFUSED_S, Backend, connected, interrupt_after, interrupted, token_of
from tests.support.background import Background
from tests.support.callers import Caller, NewCaller
from tests.support.ports import candidate_port
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockNotAcquired, LockNotHeld, LockTimeout, LockUnavailable
from wheel_lock.protocol.scripts import ACQUIRE

pytestmark = pytest.mark.servers("real")


@pytest.fixture
def taken(backend: Backend) -> str:
    """The name of a lock that somebody else holds."""
    backend.view.set("order:42", "somebody", px=60_000)
    return "order:42"


def tries(proxy: TcpProxy, name: str) -> int:
    """How many acquires of a name have been sent: plain, and by the script that tells more."""
    key, sent = b"$%d\r\n%b\r\n" % (len(name), name.encode()), proxy.seen("to_server")
    by_script = [form.sha1.encode() + b"\r\n$1\r\n1\r\n" + key for form in (ACQUIRE.plain, ACQUIRE.flagged)]
    return sum(map(sent.count, [b"SET\r\n" + key, *by_script]))


# How long and how often


def test_one_try_without_blocking(
    proxy: TcpProxy, through_proxy: LockContext, new_caller: NewCaller, taken: str
) -> None:
    locks = new_caller(through_proxy).locks
    assert not locks.lock(taken).acquire(blocking=False)
    assert not locks.lock(taken, blocking=False).acquire()
    assert not locks.lock(taken, blocking_timeout=0.0).acquire()
    assert not locks.lock(taken).acquire(blocking=True, blocking_timeout=0)
    assert tries(proxy, taken) == 4


def test_blocking_can_be_asked_for_where_the_lock_was_made_without(backend: Backend, me: Caller, taken: str) -> None:
    waiter = me.locks.lock(taken, blocking=False, retry_every=0.01)
    waiting = waiter.acquire.begin(blocking=True)
    assert not waiting.done()
    backend.view.delete(taken)
    assert waiting.result(LONG_S)
    waiter.release()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((5,), "blocking must be True or False, not 5; a limit is blocking_timeout=5"),
        ((0,), "blocking must be True or False, not 0"),
        ((False, 5), "blocking_timeout limits a wait, and with blocking=False there is none"),
        ((False, 0), "blocking_timeout limits a wait"),
    ],
)
def test_a_limit_in_the_wrong_place_is_refused(me: Caller, arguments: tuple[Any, ...], told: str) -> None:
    for lock in (me.locks.lock("order:42"), me.locks.multi_lock(["order:42"]), me.locks.reentrant_lock("order:42")):
        with pytest.raises(ValueError, match=told):
            lock.acquire(*arguments)
    with pytest.raises(ValueError, match="blocking must be True or False, not 5"):
        me.locks.lock("order:42", blocking=5)


@BOTH
def test_a_waiter_gets_the_lock_after_its_release(me: Caller, context: LockContext) -> None:
    with context.lock("order:42"):
        waiter = me.locks.lock("order:42", retry_every=0.01)
        waiting = waiter.acquire.begin()
        assert not waiting.done()
    assert waiting.result(LONG_S)
    assert waiter.is_held
    waiter.release()


@BOTH
def test_a_waiter_gets_the_lock_after_its_expiry(backend: Backend, context: LockContext) -> None:
    backend.view.set("order:42", "crashed", px=300)
    with context.lock("order:42", retry_every=0.01) as lock:
        assert backend.view.get("order:42") == token_of(lock)


def test_waiting_ends_when_its_time_is_up_and_not_before(backend: Backend, me: Caller, taken: str) -> None:
    for lock, how in [
        (me.locks.lock(taken, blocking_timeout=REFUSED_S), {}),
        (me.locks.lock(taken, blocking_timeout=600.0), {"blocking_timeout": REFUSED_S}),
    ]:
        began = time.monotonic()
        assert not lock.acquire(**how)
        assert REFUSED_S <= time.monotonic() - began < LONG_S
    assert backend.view.get(taken) == b"somebody"


def test_the_last_try_comes_when_the_time_is_up(backend: Backend, context: LockContext, taken: str) -> None:
    backend.view.pexpire(taken, 300)
    # A pause of a minute between tries is cut short by the end of the waiting.
    assert context.lock(taken, blocking_timeout=1.0, retry_every=60.0).acquire()


def test_tries_are_as_far_apart_as_was_asked_for(proxy: TcpProxy, through_proxy: LockContext, taken: str) -> None:
    lock = through_proxy.lock(taken, blocking_timeout=1.0, retry_every=0.4)
    assert not lock.acquire()
    assert 2 <= tries(proxy, taken) <= 4  # at 0, 0.4, 0.8 and 1.0; never more often


@pytest.mark.parametrize("attempts", [1, 3])
def test_max_attempts(
    proxy: TcpProxy, through_proxy: LockContext, new_caller: NewCaller, taken: str, attempts: int
) -> None:
    lock = new_caller(through_proxy).locks.lock(taken, max_attempts=attempts, retry_every=0.01)
    assert not lock.acquire()
    assert tries(proxy, taken) == attempts
    with pytest.raises(LockNotAcquired), lock:
        pass
    assert tries(proxy, taken) == 2 * attempts


# Ctrl-C


@pytest.fixture
def lock(context: LockContext) -> Iterator[Lock]:
    lock = context.lock("order:42", timeout=30.0, retry_every=0.01)
    yield lock
    if lock.is_held:
        lock.release()


def test_ctrl_c_ends_the_waiting_and_no_more(backend: Backend, context: LockContext, lock: Lock, taken: str) -> None:
    with interrupted(lambda: context.timer.busy):
        lock.acquire()
    assert not lock.is_held
    backend.view.delete(taken)
    time.sleep(0.05)  # long enough for five more tries
    assert not backend.view.exists(taken)
    assert lock.acquire()


@pytest.mark.parametrize("executed", [True, False], ids=["reply under way", "command under way"])
def test_ctrl_c_while_a_command_is_under_way(
    backend: Backend, proxy: TcpProxy, through_proxy: LockContext, executed: bool
) -> None:
    lock = through_proxy.lock("order:42", timeout=30.0)
    late = proxy.to_client if executed else proxy.to_server
    late.delay_s = math.inf
    with interrupted(lambda: backend.view.exists("order:42") if executed else tries(proxy, "order:42")):
        lock.acquire()
    late.delay_s = 0.0
    with through_proxy.lock("order:43"):  # the same road: whatever was under way has arrived before this
        eventually(lambda: not backend.view.exists("order:42"), LONG_S, "the grant is taken back")
    assert not lock.is_held
    with pytest.raises(LockNotHeld):
        lock.release()
    assert through_proxy.stats().held == 0


def test_ctrl_c_before_there_is_a_connection_leaves_no_grant(real: Backend, proxy: TcpProxy) -> None:
    context = real.context_through(proxy)
    proxy.to_client.delay_s = math.inf
    lock = context.lock("order:42", timeout=30.0)
    with interrupted(lambda: proxy.accepted):
        lock.acquire()
    proxy.heal()
    with context.lock("order:43"):
        assert not real.view.exists("order:42")
    assert tries(proxy, "order:42") == 0


def test_ctrl_c_in_a_bulk_acquire_leaves_nothing(backend: Backend, proxy: TcpProxy, through_proxy: LockContext) -> None:
    names = [f"shard:{number}" for number in range(1500)]  # three calls
    proxy.to_client.delay_s = math.inf
    with interrupted(lambda: backend.view.exists(names[-1])):
        through_proxy.acquire_many(names)
    proxy.to_client.delay_s = 0.0
    eventually(lambda: not backend.view.keys("shard:*"), LONG_S, "all grants are taken back")
    assert through_proxy.stats().held == 0


def test_an_interrupted_release_and_a_dropped_lock_harm_no_other_lock(backend: Backend, context: LockContext) -> None:
    other = context.lock("other", timeout=30.0)
    other.acquire()
    lock = context.lock("order:42", timeout=30.0)
    lock.acquire()
    go_on, stopped = threading.Event(), threading.Event()

    def hold_the_thread_up() -> None:
        stopped.set()
        go_on.wait(LONG_S)

    context.timer.post(hold_the_thread_up)
    stopped.wait(LONG_S)
    with interrupted(lambda: context.timer.busy):
        lock.release()  # it has been asked for, and will be done when the thread runs again
    del lock
    go_on.set()
    eventually(lambda: not backend.view.exists("order:42"), LONG_S)
    other.extend(30.0)
    assert context.stats().lost == 0
    assert context.stats().released == 1
    assert context.stats().connects == 1  # the shared connection has survived
    other.release()


def test_ctrl_c_at_the_first_use_leaves_one_thread_or_none(real: Backend) -> None:
    for microseconds in range(10, 310, 5):
        timer = real.timer()
        lock = real.context(timer=timer).lock("order:42", timeout=30.0, thread_local=False)
        try:
            interrupt_after(microseconds * 1e-6, lock.acquire)
        except RuntimeError:
            pass  # so ends threading.Condition, when it is interrupted while the thread that it waits for begins
        if not lock.is_held:
            assert Background(lock.acquire).result(), f"interrupted after {microseconds} us"
        lock.release()
        alive = [thread for thread in threading.enumerate() if thread.name == timer.name and thread.is_alive()]
        assert len(alive) == 1, f"interrupted after {microseconds} us"


# Servers that do not answer


def test_a_server_that_is_down_is_reported_in_bounded_time() -> None:
    port = candidate_port()
    with LockContext(redis.Redis(host="127.0.0.1", port=port), response_timeout=0.3) as context:
        began = time.monotonic()
        with pytest.raises(LockUnavailable, match=f"127.0.0.1:{port}") as caught:
            context.lock("order:42", blocking_timeout=0.3).acquire()
        assert 0.2 <= time.monotonic() - began < LONG_S
        assert caught.value.lock_name == "order:42"
        assert isinstance(caught.value, redis.ConnectionError)


def test_a_server_that_comes_up_in_time_is_used(fresh_redis: RedisServer) -> None:
    port = fresh_redis.port
    fresh_redis.kill()
    with LockContext(redis.Redis(host="127.0.0.1", port=port), response_timeout=30.0) as context:
        acquiring = Background(context.lock("order:42", blocking_timeout=30.0, thread_local=False).acquire)
        time.sleep(0.1)
        fresh_redis.start()
        assert acquiring.result(30.0)


def test_a_silent_server_is_reported_in_bounded_time_and_releases(fresh_redis: RedisServer, fresh: Backend) -> None:
    context = connected(fresh.context(response_timeout=REFUSED_S))
    fresh_redis.pause()
    lock = context.lock("order:42", timeout=30.0)
    with pytest.raises(LockTimeout) as caught:
        lock.acquire()
    assert caught.value.lock_name == "order:42"
    assert isinstance(caught.value, redis.TimeoutError)
    assert not lock.is_held
    fresh_redis.resume()
    with context.lock("order:43"):  # the same road: the acquire has arrived before this
        eventually(lambda: not fresh.view.exists("order:42"), LONG_S, "the grant is taken back")


def test_an_unanswered_release_is_reported_and_the_lock_is_not_held(fresh_redis: RedisServer, fresh: Backend) -> None:
    context = connected(fresh.context(response_timeout=REFUSED_S))
    lock = context.lock("order:42", timeout=30.0)
    lock.acquire()
    fresh_redis.pause()
    with pytest.raises(LockTimeout):
        lock.release()
    assert not lock.is_held
    fresh_redis.resume()
    eventually(lambda: not fresh.view.exists("order:42"), LONG_S, "released or expired")
    with pytest.raises(LockNotHeld):
        lock.release()


def test_a_lost_reply_to_an_acquire_is_recognised(
    backend: Backend, proxy: TcpProxy, through_proxy: LockContext
) -> None:
    proxy.to_client.delay_s = math.inf
    lock = through_proxy.lock("order:42", timeout=30.0, thread_local=False)
    acquiring = Background(lambda: lock.acquire(blocking=False))
    eventually(lambda: backend.view.exists("order:42"), LONG_S)
    proxy.cut()
    proxy.heal()
    assert acquiring.result()
    assert backend.view.get("order:42") == token_of(lock)
    lock.release()


def test_a_lost_reply_to_a_release_is_a_success(backend: Backend, proxy: TcpProxy, through_proxy: LockContext) -> None:
    lock = through_proxy.lock("order:42", timeout=30.0, thread_local=False)
    lock.acquire()
    proxy.to_client.delay_s = math.inf
    releasing = Background(lock.release)
    eventually(lambda: not backend.view.exists("order:42"), LONG_S)
    proxy.cut()
    proxy.heal()
    releasing.result()
    assert lock.lost is None
