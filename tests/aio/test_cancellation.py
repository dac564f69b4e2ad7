"""A task that is cancelled leaves nothing behind, wherever it is; asyncio's own time limits included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.backend import Backend
from tests.support.event_loops import at_once, ended, nothing_is_left, until, waiting
from wheel_lock import LockContext, LockNotHeld

pytestmark = pytest.mark.loops("asyncio", "uvloop")

NAME = "order:42"


async def started(call: Awaitable[Any]) -> asyncio.Task[Any]:
    """A task that waits for this by now."""

    async def as_task() -> Any:
        return await call

    task = asyncio.create_task(as_task())
    await asyncio.sleep(0)
    return task


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
