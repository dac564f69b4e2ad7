"""Whose a lock is among tasks, and how it ends, with redis-py's asyncio Lock, renewed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import LockNotOwnedError

from tests.redis.redis_locks import NAME, hand_over_s, ours, plain, play, soon, with_token
from tests.redis.support import LONG_S, Backend
from wheel_lock import LockAlreadyHeld, LockContext
from wheel_lock.redis_lock import AsyncLock

# Whose it is


def test_a_task_that_would_wait_for_itself_is_told(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        async with ours(client, timeout=30) as lock:
            assert not await lock.acquire(blocking=False)
            with pytest.raises(LockAlreadyHeld):
                await lock.acquire()
            assert await lock.owned()

    play(real, scene)


@pytest.mark.parametrize("thread_local", [True, False])
def test_any_task_may_release_what_another_has_acquired(real: Backend, thread_local: bool) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        lock = ours(client, timeout=30, thread_local=thread_local)
        await asyncio.create_task(lock.acquire())
        waiting = asyncio.create_task(lock.acquire())
        assert await hand_over_s(waiting, lock.release) < LONG_S
        assert await lock.owned()
        await lock.release()

    play(real, scene)


def test_who_belongs_to_all_threads_may_wait_for_another_task(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        lock = ours(client, timeout=30, thread_local=False)
        await lock.acquire()
        asyncio.get_running_loop().call_later(0.1, lambda: tasks.append(asyncio.create_task(lock.release())))
        assert await lock.acquire()
        await lock.release()

    tasks: list[asyncio.Task[None]] = []
    play(real, scene)


def test_tokens_set_by_hand(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        first, second = ours(client, timeout=30), ours(client, timeout=30)
        await first.acquire()
        assert await with_token(second, first.local.token).extend(10)
        await second.release()
        with pytest.raises(LockNotOwnedError):
            await first.release()
        theirs = plain(client, timeout=30)
        await theirs.acquire()
        assert await with_token(second, theirs.local.token).reacquire()
        await second.release()
        assert not real.view.exists(NAME)

    play(real, scene)


@pytest.mark.parametrize("timeout", [30, None])
@pytest.mark.parametrize("polls", [False, True])
def test_namesakes_exclude_each_other(real: Backend, timeout: float | None, polls: bool) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        first, second = (ours(client, timeout=timeout, sleep=0.02, lock_class=kind) for _ in range(2))
        assert await first.acquire(token="host-1")
        assert not await second.acquire(blocking=False, token="host-1")
        waiting = asyncio.create_task(second.acquire(token="host-1"))
        assert await hand_over_s(waiting, first.release) < LONG_S
        assert second.local.token == b"host-1"
        await second.release()

    kind = type("AsyncLock", (AsyncLock,), {"polls": polls})
    play(real, scene)


# Ends


def test_what_is_lost_is_not_owned(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        lock = ours(client, timeout=0.3)
        await lock.acquire()
        real.view.set(NAME, "somebody else")
        await soon(lambda: LockContext.shared(client).stats().lost)
        with pytest.raises(LockNotOwnedError, match="Cannot extend a lock that's no longer owned"):
            await lock.extend(1)
        with pytest.raises(LockNotOwnedError, match="Cannot release a lock that's no longer owned"):
            await lock.release()
        assert lock.local.token is None
        async with ours(client, name="other", timeout=30, raise_on_release_error=False):
            real.view.delete("other")

    play(real, scene)


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_release_that_is_cancelled_can_be_repeated(real: Backend, turns: int) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        lock = ours(client, timeout=30)
        for _ in range(10):
            await lock.acquire()
            releasing = asyncio.create_task(lock.release())
            for _ in range(turns):
                await asyncio.sleep(0)
            releasing.cancel()
            await asyncio.wait([releasing])
            if lock.local.token is not None:
                await lock.release()
            assert not await lock.locked()
            assert lock.local.token is None
        assert LockContext.shared(client).stats().lost == 0

    play(real, scene)


def test_a_release_does_not_take_the_next_ones_token(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        lock = ours(client, timeout=30, thread_local=False)
        await lock.acquire()
        mine, lock.do_release = lock.do_release, None

        async def slowly(token: Any) -> None:
            await mine(token)
            assert await lock.acquire()  # somebody else, through the same object, before the release has returned

        lock.do_release = slowly
        await lock.release()
        assert await lock.owned()
        await mine(lock.local.token)

    play(real, scene)


def test_a_lock_goes_on_to_the_next_event_loop_if_it_is_not_bound_to_one(real: Backend) -> None:
    client = redis.asyncio.Redis(host="127.0.0.1", port=real.port, single_connection_client=False)
    lock = ours(client, timeout=30, thread_local=False)
    assert asyncio.run(lock.acquire())
    asyncio.run(lock.release())
    assert not real.view.exists(NAME)
    LockContext.shared(client).close()


def test_many_tasks_count_without_a_slip(real: Backend) -> None:
    async def scene(client: redis.asyncio.Redis) -> None:
        lock, count = ours(client, timeout=30), 0

        async def add() -> None:
            nonlocal count
            for _ in range(10):
                async with ours(client, timeout=30):
                    seen = count
                    await asyncio.sleep(0)
                    count = seen + 1

        await asyncio.gather(*(add() for _ in range(50)))
        assert count == 500
        assert not await lock.locked()

    play(real, scene)
