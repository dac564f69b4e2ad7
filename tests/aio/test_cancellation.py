"""A task that is cancelled leaves nothing behind, wherever it is; asyncio's own time limits included."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.backend import Backend
from tests.support.event_loops import at_once, ended, nothing_is_left, raising, until, waiting
from tests.support.proxy import TcpProxy
from wheel_lock import LockContext, LockNotHeld
from wheel_lock.asyncio import AsyncContext

pytestmark = pytest.mark.loops("asyncio", "uvloop")

NAME = "order:42"


async def started(call: Awaitable[Any]) -> asyncio.Task[Any]:
    """A task that waits for this by now."""

    async def as_task() -> Any:
        return await call

    task = asyncio.create_task(as_task())
    await asyncio.sleep(0)
    return task


async def warmed_up(context: LockContext) -> AsyncContext:
    """Its connection stands, and its scripts are known to the server."""
    async with context.asyncio.lock("warm-up") as lock:
        await lock.reacquire()
    await context.asyncio.release_many((await context.asyncio.acquire_many(["warm-up"])).values())
    return context.asyncio


# In the middle of one call


async def test_while_it_waits_in_line(real: Backend, context: LockContext) -> None:
    real.view.set(NAME, "somebody", px=60_000)
    first = asyncio.create_task(context.asyncio.lock(NAME).acquire())
    second = asyncio.create_task(context.asyncio.lock(NAME).acquire())
    await waiting(context, 2)
    first.cancel()
    await waiting(context, 1)
    real.view.delete(NAME)
    assert await second
    await ended(first)
    assert first.cancelled()


async def test_while_it_polls(real: Backend, context: LockContext) -> None:
    real.view.set(NAME, "somebody", px=60_000)
    task = asyncio.create_task(context.asyncio.lock(NAME, retry_every=0.001).acquire())
    await waiting(context, 1)
    task.cancel()
    await ended(task)
    real.view.delete(NAME)
    await nothing_is_left(context, real.view, [NAME])


async def test_a_cancelled_export_releases_because_nobody_has_the_text(real: Backend, context: LockContext) -> None:
    lock = context.asyncio.lock(NAME)
    await lock.acquire()
    task = await started(lock.export())
    task.cancel()
    await ended(task)
    assert task.cancelled()
    await until(lambda: not lock.is_held)
    with pytest.raises(LockNotHeld):
        at_once(lock.release())
    await nothing_is_left(context, real.view, [NAME])


async def test_a_cancelled_query_leaves_the_next_its_reply(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext
) -> None:
    tasks = await warmed_up(through_proxy)
    real.view.set("taken", "somebody")
    proxy.to_client.delay_s = math.inf
    questions = [await started(tasks.lock("taken" if number % 3 else "free").locked()) for number in range(30)]
    for question in questions[::2]:
        question.cancel()
    proxy.to_client.delay_s = 0.0
    await ended(*questions)
    assert [question.result() for question in questions[1::2]] == [bool(number % 3) for number in range(1, 30, 2)]


# asyncio's own time limits


async def under_timeout(call: Callable[[], Awaitable[Any]], limit_s: float) -> Any:
    async with asyncio.timeout(limit_s):
        return await call()


async def under_wait_for(call: Callable[[], Awaitable[Any]], limit_s: float) -> Any:
    return await asyncio.wait_for(call(), limit_s)


@pytest.mark.parametrize("limited", [under_timeout, under_wait_for])
async def test_an_acquire_under_a_time_limit(
    real: Backend, context: LockContext, limited: Callable[..., Awaitable[Any]]
) -> None:
    lock = context.asyncio.lock(NAME)
    assert await limited(lock.acquire, 5.0)
    await lock.release()
    real.view.set(NAME, "somebody", px=60_000)
    with pytest.raises(TimeoutError):
        await limited(lock.acquire, 0.02)
    assert not lock.is_held
    real.view.delete(NAME)
    await nothing_is_left(context, real.view, [NAME])


async def test_a_time_limit_of_asyncio_around_a_block(real: Backend, context: LockContext) -> None:
    async with raising(TimeoutError), asyncio.timeout(0.02), context.asyncio.lock(NAME):
        await asyncio.sleep(60.0)
    await nothing_is_left(context, real.view, [NAME])
