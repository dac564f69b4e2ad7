"""The tokens of redis-py's Lock: thread-local, set by hand, chosen by the caller; and replaced scripts."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError

from tests.redis_lock.callers import NAME, Party, ours, with_token
from tests.support.backend import LONG_S, Backend, refused
from tests.support.background import Background, in_thread
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.lease import Event, Lease
from wheel_lock.lock_types.exclusive import CALLER_TOKEN, EVERLASTING_CALLER_TOKEN
from wheel_lock.protocol.resp import lease_args
from wheel_lock.redis_lock import AsyncLock, Lock

pytestmark = pytest.mark.servers("real")


# Whose token it is


def test_a_token_belongs_to_the_thread_that_acquired_it(client: redis.Redis) -> None:
    lock = ours(client, timeout=30)
    lock.acquire()
    assert in_thread(lambda: lock.local.token) is None
    assert not in_thread(lock.owned)
    for method in (lock.release, lambda: lock.extend(10), lock.reacquire):
        with pytest.raises(LockError):
            in_thread(method)
    assert lock.owned()
    lock.release()


# Set by hand


@pytest.mark.parametrize("timeout", [30, None])
def test_who_knows_the_token_of_this_process_acts_through_the_engine(party: Party, timeout: float | None) -> None:
    first = party.ours(timeout=timeout)
    first.acquire()
    waiter = party.another().ours(timeout=30, sleep=30)
    waiting = waiter.acquire.begin()
    other = party.another().ours(timeout=timeout).with_token(first.token)
    assert other.owned()
    if timeout is not None:
        assert other.extend(10)
        assert other.reacquire()
    other.release()
    assert waiting.result(LONG_S)  # and not after `sleep`
    assert party.context.stats().lost == 0
    with pytest.raises(LockNotOwnedError, match="Cannot release a lock that's no longer owned"):
        first.release()
    waiter.release()


def test_a_token_is_found_also_when_an_earlier_holders_object_is_dropped(client: redis.Redis, real: Backend) -> None:
    first, second = ours(client, timeout=30), ours(client, timeout=30)
    first.acquire()
    real.view.delete(NAME)
    second.acquire()
    with pytest.warns(ResourceWarning) as warned:
        del first
        gc.collect()
        eventually(lambda: len(warned), LONG_S, "the object is abandoned")
    with_token(ours(client, timeout=30), second.local.token).release()
    eventually(lambda: LockContext.shared(client).stats().released == 1, LONG_S)


def test_an_object_keeps_nothing_of_what_it_has_lost(client: redis.Redis, real: Backend) -> None:
    lock = ours(client, timeout=30, sleep=0.01)
    for _ in range(10):
        lock.acquire()
        real.view.delete(NAME)
        with pytest.raises(LockNotOwnedError):
            lock.extend(1)
    assert len(lock._kept) == 1


@pytest.mark.parametrize("text", [False, True])
def test_the_token_of_another_process_goes_to_the_server(party: Party, real: Backend, text: bool) -> None:
    theirs = real.view.lock(NAME, timeout=30)
    theirs.acquire()
    token = theirs.local.token.decode() if text else theirs.local.token
    mine = party.ours(timeout=60).with_token(token)
    assert mine.extend(10)
    assert 39_000 < real.view.pttl(NAME) <= 40_000
    assert mine.reacquire()
    assert 59_000 < real.view.pttl(NAME) <= 60_000
    mine.release()
    assert not real.view.exists(NAME)
    for method in (mine.release, lambda: mine.extend(1), mine.reacquire):
        mine.with_token(token)
        with pytest.raises(LockNotOwnedError):
            method()


# Chosen by the caller


@pytest.mark.parametrize("timeout", [30, None])
@pytest.mark.parametrize("polls", [False, True])
def test_namesakes_exclude_each_other(party: Party, api: str, timeout: float | None, polls: bool) -> None:
    kind = type("Kind", (Lock if api == "threads" else AsyncLock,), {"polls": polls})
    first, second = (each.ours(timeout=timeout, sleep=0.02, lock_class=kind) for each in (party, party.another()))
    assert first.acquire(token="host-1")
    assert not first.acquire(blocking=False, token="host-1")
    assert not second.acquire(blocking=False, token="host-1")
    assert refused(partial(second.acquire, token="host-1"))
    waiting = Background(lambda: second.acquire(token="host-1"))
    time.sleep(0.1)
    assert not waiting.done
    first.release()
    assert waiting.result()
    assert second.token == b"host-1"


@pytest.mark.parametrize("kind", [CALLER_TOKEN, EVERLASTING_CALLER_TOKEN])
def test_what_may_be_a_namesakes_is_neither_recognised_nor_tidied_up(kind: Any) -> None:
    group = type("Group", (), {"alive": True, "timeout_s": 30.0})()
    held, refused = (Lease(NAME, lease_args(NAME.encode(), b"host-1"), group) for _ in range(2))
    refused.transition(Event.REJECTED)
    assert kind.release_many([held]).arguments == 3
    assert kind.release_many([refused]).arguments == 0
    for again in (False, True):
        for waiter_ttl_ms in (0, 5000):
            assert kind.acquire(held, 30_000, again=again, waiter_ttl_ms=waiter_ttl_ms).script is None


# Scripts that replace redis-py's


def test_a_replaced_script_is_used(client: redis.Redis, real: Backend) -> None:
    lock = ours(client, timeout=30)
    calls: list[str] = []

    def script(name: str, command: str) -> Any:
        registered = client.register_script(command)

        def call(**options: Any) -> Any:
            calls.append(name)
            return registered(**options)

        return call

    lock.lua_extend = script("extend", "return redis.call('pexpire', KEYS[1], ARGV[2])")
    lock.lua_reacquire = script("reacquire", "return redis.call('pexpire', KEYS[1], ARGV[2])")
    lock.lua_release = script("release", "return redis.call('rename', KEYS[1], 'released')")
    lock.acquire()
    assert lock.extend(5)
    assert 4_000 < real.view.pttl(NAME) <= 5_000
    assert lock.reacquire()
    lock.release()
    assert calls == ["extend", "reacquire", "release"]
    assert real.view.exists("released")
    stats = LockContext.shared(client).stats()
    assert (stats.held, stats.lost) == (0, 0)


def test_a_replaced_script_is_not_asked_about_what_is_lost(client: redis.Redis, real: Backend) -> None:
    lock = ours(client, timeout=0.4)
    lock.lua_extend = client.register_script("return 1")
    lock.acquire()
    real.view.delete(NAME)
    eventually(lambda: LockContext.shared(client).stats().lost, LONG_S)
    with pytest.raises(LockNotOwnedError):
        lock.extend(5)
