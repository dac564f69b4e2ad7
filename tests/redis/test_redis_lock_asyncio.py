"""redis-py's asyncio Lock, renewed: `client.lock(..., lock_class=AsyncLock)`."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest
import redis.asyncio
import redis.asyncio.lock
from redis.exceptions import LockError

from tests.redis.redis_locks import NAME, SLEEP_S, client_of, hand_over_s, ours, plain, play
from tests.redis.support import LONG_S, REFUSED_S, Backend
from wheel_lock.redis_lock import AsyncLock


def test_it_is_redis_pys_lock(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        lock = ours(client, timeout=30)
        assert isinstance(lock, redis.asyncio.lock.Lock)
        async with lock:
            assert (await lock.locked(), await lock.owned()) == (True, True)
            assert real.view.get(NAME) == lock.local.token
            assert 29_000 < real.view.pttl(NAME) <= 30_000
            assert await lock.extend(10)
            assert 39_000 < real.view.pttl(NAME) <= 40_000
            assert await lock.reacquire()
            assert 29_000 < real.view.pttl(NAME) <= 30_000
        assert (await lock.locked(), await lock.owned(), lock.local.token) == (False, False, None)

    play(real, scene, decode_responses=True)


@pytest.mark.parametrize("method", ["acquire", "release", "locked", "owned", "extend", "reacquire"])
def test_its_methods_take_what_redis_pys_take(method: str) -> None:
    mine, theirs = (inspect.signature(getattr(of, method)).parameters for of in (AsyncLock, redis.asyncio.lock.Lock))
    assert list(mine) == list(theirs)
    assert [one.default for one in mine.values()] == [one.default for one in theirs.values()]


@pytest.mark.slow
def test_with_a_timeout_it_is_renewed(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        async with ours(client, timeout=1.5) as lock:
            time.sleep(2.5)  # it need not even be its event loop that runs
            assert await lock.owned()
        assert not real.view.exists(NAME)

    play(real, scene)


def test_without_a_timeout_it_does_not_expire(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        async with ours(client) as lock:
            assert real.view.pttl(NAME) == -1
            with pytest.raises(LockError):
                await lock.extend(1)
        assert not real.view.exists(NAME)

    play(real, scene)


# Waiting


def test_a_waiter_is_woken_by_the_release(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        async with client_of(real) as elsewhere:
            for other in (client, elsewhere):
                holder, waiter = ours(client, timeout=30), ours(other, timeout=30, sleep=30)
                await holder.acquire()
                waiting = asyncio.create_task(waiter.acquire())
                assert await hand_over_s(waiting, holder.release) < LONG_S
                await waiter.release()

    play(real, scene)


def test_a_release_by_redis_py_is_noticed_after_sleep(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        theirs = plain(client, timeout=30)
        await theirs.acquire()
        waiting = asyncio.create_task(ours(client, timeout=30, sleep=SLEEP_S).acquire())
        assert await hand_over_s(waiting, theirs.release) < SLEEP_S + 3.0

    play(real, scene)


def test_a_wait_that_could_not_hold_one_sleep_is_not_begun(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        real.view.set(NAME, "somebody")
        async with asyncio.timeout(LONG_S):
            assert not await ours(client, timeout=30, sleep=60, blocking_timeout=20).acquire()
            assert not await ours(client, timeout=30, sleep=0.01).acquire(blocking_timeout=REFUSED_S)
            with pytest.raises(LockError, match="Unable to acquire lock within the time specified"):
                async with ours(client, timeout=30, blocking=False):
                    pass

    play(real, scene)


def test_a_wait_that_is_cancelled_leaves_nothing_behind(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        real.view.set(NAME, "somebody")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ours(client, timeout=30, sleep=0.05).acquire(), 0.1)
        real.view.delete(NAME)
        await asyncio.sleep(0.2)
        assert not real.view.exists(NAME)

    play(real, scene)
