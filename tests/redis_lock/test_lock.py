"""redis-py's Lock and asyncio Lock, renewed: `client.lock(..., lock_class=Lock)` means what redis-py means, and lasts."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis
import redis.asyncio.lock
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError

from tests.redis_lock.callers import NAME, SLEEP_S, Party, ours, plain
from tests.support.backend import BOTH, LONG_S, Backend
from tests.support.ids import case_id
from tests.support.programs import run_python
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockContext
from wheel_lock.redis_lock import AsyncLock, Lock

pytestmark = pytest.mark.servers("real")


def hand_over_s(waiting: Future[Any], release: Callable[[], object]) -> float:
    """Seconds from a release until a waiter has the lock."""
    assert not waiting.done()
    began = time.monotonic()
    release()
    assert waiting.result(LONG_S)
    return time.monotonic() - began


def renewed(party: Party, times: int) -> None:
    """Return when the locks of a party's client have been renewed so often from now on."""
    before = party.context.stats().renewed
    eventually(lambda: party.context.stats().renewed >= before + times, LONG_S)


@pytest.mark.parametrize(("kind", "theirs"), [(Lock, redis.lock.Lock), (AsyncLock, redis.asyncio.lock.Lock)])
def test_it_is_redis_pys_lock(kind: Any, theirs: Any) -> None:
    client: Any = redis.Redis() if kind is Lock else redis.asyncio.Redis()
    lock = ours(client, timeout=30, sleep=0.2, blocking=False, blocking_timeout=1, raise_on_release_error=False)
    assert isinstance(lock, theirs)
    assert (lock.name, lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (NAME, 30, 0.2, False, 1)
    assert (lock.thread_local, lock.raise_on_release_error, lock.local.token) == (True, False, None)
    for method in ("acquire", "release", "locked", "owned", "extend", "reacquire"):
        takes, should = (inspect.signature(getattr(of, method)).parameters for of in (kind, theirs))
        assert list(takes) == list(should)
        assert [one.default for one in takes.values()] == [one.default for one in should.values()]


def lasts(view: redis.Redis, seconds: float, since: float) -> bool:
    """Whether the lock expires so many seconds after a moment between `since` and now."""
    left_s = view.pttl(NAME) / 1000
    return seconds - (time.monotonic() - since) - 0.001 <= left_s <= seconds


@BOTH
def test_its_life(backend: Backend, new_party: Callable[..., Party]) -> None:
    lock = new_party(decode_responses=True).ours(timeout=30)
    began = time.monotonic()
    with lock:
        assert (lock.locked(), lock.owned()) == (True, True)
        assert backend.view.get(NAME) == lock.token
        assert lasts(backend.view, 30, began)
        assert lock.extend(10)
        assert lasts(backend.view, 40, began)
        began = time.monotonic()
        assert lock.extend(20, replace_ttl=True)
        assert lasts(backend.view, 20, began)
        began = time.monotonic()
        assert lock.reacquire()
        assert lasts(backend.view, 30, began)
    assert (lock.locked(), lock.owned(), lock.token) == (False, False, None)


# Renewal


def test_with_a_timeout_it_is_renewed(party: Party, view: redis.Redis) -> None:
    with party.ours(timeout=1.5) as lock:
        renewed(party, 2)
        assert lock.owned()
        assert not plain(view).acquire(blocking=False)
    assert not view.exists(NAME)


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_a_timeout_it_does_not_expire(party: Party, view: redis.Redis, timeout: float | None) -> None:
    with party.ours(timeout=timeout) as lock:
        assert view.pttl(NAME) == -1
        assert lock.owned()
        with pytest.raises(LockError):
            lock.extend(10)
        assert view.pttl(NAME) == -1
    assert not view.exists(NAME)


def test_without_a_timeout_a_grant_whose_key_was_deleted_ends_with_the_next(party: Party, view: redis.Redis) -> None:
    lock = party.ours()
    for _ in range(3):
        lock.acquire()
        view.delete(NAME)
    eventually(lambda: party.context.stats().held == 1, LONG_S)
    lock.acquire()
    lock.release()
    assert view.keys() == []


def test_a_very_short_timeout_runs_out_as_in_redis_py(client: redis.Redis, view: redis.Redis) -> None:
    lock = ours(client, timeout=0.1)
    assert lock.acquire()
    eventually(lambda: not view.exists(NAME), LONG_S)
    with pytest.raises(LockNotOwnedError, match="no longer owned"):
        lock.release()


# Waiting


@pytest.mark.parametrize("timeout", [30, None])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same client", "another client"])
def test_a_waiter_is_woken_by_the_release(
    party: Party, new_party: Callable[..., Party], elsewhere: bool, timeout: float | None
) -> None:
    holder = party.ours(timeout=30)
    holder.acquire()
    waiter = (new_party() if elsewhere else party.another()).ours(timeout=timeout, sleep=30)
    assert hand_over_s(waiter.acquire.begin(), holder.release) < LONG_S
    waiter.release()


def test_a_release_by_redis_py_is_noticed_after_sleep(party: Party, view: redis.Redis) -> None:
    theirs = plain(view, timeout=60)
    theirs.acquire()
    waiter = party.ours(timeout=30, sleep=SLEEP_S)
    assert hand_over_s(waiter.acquire.begin(), theirs.release) < SLEEP_S + 3.0
    waiter.release()


def test_a_wait_that_could_not_hold_one_sleep_is_not_begun(party: Party, view: redis.Redis) -> None:
    view.set(NAME, "another")
    began = time.monotonic()
    assert not party.ours(timeout=30, sleep=60, blocking_timeout=20).acquire()
    if isinstance(party.client, redis.Redis):
        assert not ours(party.client, timeout=30).acquire(sleep=60, blocking_timeout=20)
    assert time.monotonic() - began < LONG_S


def test_an_endless_blocking_timeout_is_none(client: redis.Redis) -> None:
    assert ours(client, timeout=30).acquire(blocking_timeout=float("inf"))


# Once more, while it is held


@pytest.mark.parametrize("timeout", [30, None])
@pytest.mark.parametrize(("api", "another_object"), [("threads", False), ("threads", True), ("tasks", False)])
def test_a_caller_cannot_wait_for_itself(party: Party, timeout: float | None, another_object: bool) -> None:
    with party.ours(timeout=timeout) as lock:
        assert not lock.acquire(blocking=False)
        with pytest.raises(LockAlreadyHeld):
            (party.ours(timeout=30) if another_object else lock).acquire()
        assert lock.owned()


# Names


@pytest.mark.parametrize("name", ["order:42", b"order:\xff", memoryview(b"order:42"), "bestellung:\u00fc"], ids=case_id)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_its_key_is_redis_pys(real: Backend, name: Any, encoding: str) -> None:
    client = real.client(encoding=encoding)
    with ours(client, name=name, timeout=30):
        assert not plain(client, name=name, timeout=30).acquire(blocking=False)
        assert len(real.view.keys()) == 1
    with plain(client, name=name, timeout=30):
        assert not ours(client, name=name, timeout=30).acquire(blocking=False)
    LockContext.shared(client).close()


def test_it_can_be_imported_where_redis_pys_methods_have_been_wrapped(real: Backend) -> None:
    # As libraries do that trace calls.
    program = """
import asyncio, functools, sys
import redis, redis.asyncio
def traced(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)
    return inner
redis.lock.Lock.__exit__ = traced(redis.lock.Lock.__exit__)
redis.asyncio.lock.Lock.__aexit__ = functools.partialmethod(redis.asyncio.lock.Lock.__aexit__)
from wheel_lock.redis_lock import AsyncLock, Lock
with Lock(redis.Redis(port=int(sys.argv[1])), "a", timeout=30) as lock:
    assert lock.owned()
async def main():
    async with redis.asyncio.Redis(port=int(sys.argv[1])) as client, AsyncLock(client, "b", timeout=30) as lock:
        assert await lock.owned()
asyncio.run(main())
"""
    run_python("-c", program, str(real.port))
    assert real.view.keys() == []


# Times that no key can have


@pytest.mark.parametrize("seconds", [float("nan"), -1, 10**400, 5e6], ids=case_id)
def test_an_extension_that_makes_no_sense_is_refused_and_nothing_is_lost(client: redis.Redis, seconds: float) -> None:
    lock = ours(client, timeout=1e9)
    assert lock.acquire()
    context = LockContext.shared(client)
    connects = context.stats().connects
    for replace_ttl in (False, True) if seconds != 5e6 else (False,):  # that is too much only with what is left
        with pytest.raises(ValueError, match="additional_time"):
            lock.extend(seconds, replace_ttl=replace_ttl)
    assert lock.owned()
    assert lock.extend(60.0, replace_ttl=True)
    assert lock.extend(60.0)
    with pytest.raises(ValueError, match="additional_time"):
        lock.extend(0, replace_ttl=True)
    assert context.stats().connects == connects
    lock.release()


@pytest.mark.parametrize("timeout", [10**400, -(10**400), float("inf"), float("nan")], ids=case_id)
def test_a_timeout_that_no_key_can_have_is_refused_when_acquiring(client: redis.Redis, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        ours(client, timeout=timeout).acquire()


@pytest.mark.parametrize("sleep", [None, -1, float("nan")], ids=case_id)
def test_a_sleep_that_is_none_is_refused_when_acquiring(party: Party, sleep: Any) -> None:
    with pytest.raises(ValueError, match="sleep must be a number of seconds"):
        party.ours(timeout=30, sleep=sleep).acquire()
    assert party.context.stats().connects == 0


def test_a_sleep_may_be_as_long_as_anybody_likes(client: redis.Redis) -> None:
    for sleep in (1e300, float("inf"), 10**400):
        lock = ours(client, timeout=30, sleep=sleep)
        assert lock.acquire()
        lock.release()
