"""redis-py's asyncio Lock, renewed: tasks that are cancelled, that release for each other, and several event loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio

from tests.redis_lock.callers import NAME, client_of, ours
from tests.support.backend import Backend
from tests.support.event_loops import ended, until
from wheel_lock import LockContext


@pytest.mark.parametrize("thread_local", [True, False])
async def test_any_task_may_release_what_another_has_acquired(real: Backend, thread_local: bool) -> None:
    async with client_of(real) as client:
        lock = ours(client, timeout=30, thread_local=thread_local)
        await asyncio.create_task(lock.acquire())
        waiting = asyncio.create_task(lock.acquire())
        await until(lambda: LockContext.shared(client).stats().waiting)
        await lock.release()
        assert await waiting
        assert await lock.owned()
        await lock.release()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_release_that_is_cancelled_can_be_repeated(real: Backend, turns: int) -> None:
    async with client_of(real) as client:
        lock = ours(client, timeout=30)
        for _ in range(10):
            await lock.acquire()
            releasing = asyncio.create_task(lock.release())
            for _ in range(turns):
                await asyncio.sleep(0)
            releasing.cancel()
            await ended(releasing)
            if lock.local.token is not None:
                await lock.release()
            assert not await lock.locked()
            assert lock.local.token is None
        assert LockContext.shared(client).stats().lost == 0


async def test_a_release_does_not_take_the_next_ones_token(real: Backend) -> None:
    async with client_of(real) as client:
        lock = ours(client, timeout=30, thread_local=False)
        await lock.acquire()
        mine, lock.do_release = lock.do_release, None

        async def slowly(token: Any) -> None:
            await mine(token)
            assert await lock.acquire()  # another task, through the same object, before the release has returned

        lock.do_release = slowly
        await lock.release()
        assert await lock.owned()
        await mine(lock.local.token)


def test_a_lock_goes_on_to_the_next_event_loop_if_it_is_not_bound_to_one(real: Backend) -> None:
    client = redis.asyncio.Redis(host="127.0.0.1", port=real.port, single_connection_client=False)
    lock = ours(client, timeout=30, thread_local=False)
    assert asyncio.run(lock.acquire())
    asyncio.run(lock.release())
    assert not real.view.exists(NAME)
    LockContext.shared(client).close()
