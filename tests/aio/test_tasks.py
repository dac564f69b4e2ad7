"""Tasks and one context: they share lock objects, hand locks on, are cancelled, and live in several event loops."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.backend import Backend
from tests.support.event_loops import nothing_is_left, until
from wheel_lock import LockAlreadyHeld, LockContext, LockLost, LocksLost
from wheel_lock.aio.cancellation import EnteredBlock, left
from wheel_lock.aio.lock import Lock

pytestmark = pytest.mark.loops("asyncio", "uvloop")

NAME = "order:42"


# Tasks and objects


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_tasks_that_begin_at_once_are_tasks_like_others(real: Backend, context: LockContext) -> None:
    def eager(loop: Any, coroutine: Any, eager_start: bool = True, **settings: Any) -> Any:
        # uvloop passes eager_start, which asyncio's own factory does not know on Python 3.12 and 3.13.0.
        return getattr(asyncio, "eager_task_factory")(loop, coroutine, **settings)  # noqa: B009

    asyncio.get_running_loop().set_task_factory(eager)
    lock, inside = context.asyncio.lock(NAME, cancel_on_lost=True), 0

    async def work() -> None:
        nonlocal inside
        async with lock:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*[work() for _ in range(20)])
    await nothing_is_left(context, real.view, ["order:42"])


# The context


async def test_the_context_says_the_same_to_tasks_and_to_threads(context: LockContext) -> None:
    tasks = context.asyncio
    async with tasks.lock("order:42"), tasks.lock("order:43"):
        assert [lock.name for lock in tasks.held()] == ["order:42", "order:43"]
        assert tasks.stats().held == context.stats().held == 2
    assert tasks.timer is context.timer
    assert not tasks.closed
    async with tasks:
        pass
    assert tasks.closed
    assert context.closed


async def test_what_tasks_have_of_a_context_keeps_it(real: Backend) -> None:
    tasks = LockContext(real.client()).asyncio
    gc.collect()

    for _ in range(5):
        async with tasks.lock("order:42"):
            pass
    assert tasks.stats().connects == 1  # no connection was closed in between
    await tasks.close()


# Cancellation, by asyncio's own time limits too


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
    real.view.set(NAME, "another", px=60_000)
    with pytest.raises(TimeoutError):
        await limited(lock.acquire, 0.02)
    assert not lock.is_held
    real.view.delete(NAME)
    await nothing_is_left(context, real.view, [NAME])


# Blocks of one object


async def numbers(lock: Any) -> AsyncGenerator[int, None]:
    async with lock:
        yield 1


async def test_a_generator_gives_back_its_own_permit_whatever_task_closes_it(
    real: Backend, context: LockContext
) -> None:
    permits = context.asyncio.semaphore(NAME, 2)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work() -> bool:
        async with permits:
            entered.set()
            await leave.wait()
            return permits.is_held

    async for _ in numbers(permits):
        working = asyncio.create_task(work())
        await entered.wait()
        break  # the event loop closes the generator in a task of its own
    await until(lambda: len(context.held()) == 1)
    leave.set()
    assert await working
    await nothing_is_left(context, real.view, [NAME])


async def test_an_exit_stack_gives_back_the_permit_of_the_task_that_has_ended(
    real: Backend, context: LockContext
) -> None:
    permits = context.asyncio.semaphore(NAME, 2)
    stack = AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(permits))

    async def work() -> bool:
        async with permits:
            await asyncio.create_task(stack.aclose())
            return permits.is_held

    assert await asyncio.create_task(work())
    await nothing_is_left(context, real.view, [NAME])


async def test_a_generator_that_another_task_goes_on_with_gives_back_its_own_permit(
    real: Backend, context: LockContext
) -> None:
    permits = context.asyncio.semaphore(NAME, 2)

    begun = numbers(permits)
    await asyncio.create_task(begun.__anext__())

    async def work() -> bool:
        async with permits:
            assert [number async for number in begun] == []
            await until(lambda: len(context.held()) == 1)
            return permits.is_held

    assert await asyncio.create_task(work())
    await nothing_is_left(context, real.view, [NAME])


async def test_a_frame_that_has_ended_leaves_its_id_to_the_next() -> None:
    blocks: list[EnteredBlock] = []
    frame, lease = sys._getframe(), Mock()

    async def work() -> None:
        blocks.append(EnteredBlock(lease, frame))  # for that of a helper, in which each task enters and leaves
        mine = blocks[-1]
        await asyncio.sleep(0)
        assert left(blocks, frame, discarded=False, by_hand=False) is mine

    await asyncio.gather(work(), work())


@pytest.mark.parametrize("kind", ["lock", "multi_lock"])
async def test_a_generator_that_has_lost_its_lease_leaves_that_of_the_next_holder(
    real: Backend, context: LockContext, kind: str
) -> None:
    shared = context.asyncio.lock(NAME, 0.5) if kind == "lock" else context.asyncio.multi_lock([NAME, "b"], 0.5)

    begun = numbers(shared)
    await asyncio.create_task(begun.__anext__())
    gc.collect()  # the task
    real.view.delete(NAME, "b")
    await until(lambda: not context.held())

    async def work() -> None:
        async with shared:
            await asyncio.create_task(begun.aclose())
            await context.asyncio.lock("another").acquire(blocking=False)  # behind all that was sent
            assert shared.is_held
            assert shared.lost is None

    await asyncio.create_task(work())


def test_a_block_guards_its_own_lease_where_another_loop_acquires_at_that_moment(
    real: Backend, context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    permits = context.asyncio.semaphore(NAME, 2, timeout=0.5, cancel_on_lost=True)
    plain, acquired, leave = Lock._enter, threading.Event(), threading.Event()

    async def in_a_loop_of_its_own() -> None:
        async with permits:
            acquired.set()
            while not leave.is_set():
                await asyncio.sleep(0.01)

    def after_the_other(lock: Lock) -> None:
        if not acquired.is_set() and threading.current_thread() is not other:
            other.start()
            acquired.wait()
        plain(lock)

    async def work() -> None:
        async with permits:
            token = permits.token
            assert token is not None
            real.view.zrem(NAME, token)
            await asyncio.sleep(60)

    other = threading.Thread(target=asyncio.run, args=(in_a_loop_of_its_own(),))
    monkeypatch.setattr(Lock, "_enter", after_the_other)
    try:
        with pytest.raises(LockLost):
            asyncio.run(asyncio.wait_for(work(), 20.0))
    finally:
        leave.set()
        other.join()


async def test_a_shared_multi_lock_knows_which_block_is_left(real: Backend, context: LockContext) -> None:
    several = context.asyncio.multi_lock(["a", "b"], timeout=0.5)
    deleted, left = asyncio.Event(), asyncio.Event()

    async def loses() -> None:
        async with several:
            real.view.delete("a", "b")
            deleted.set()
            await left.wait()

    losing = asyncio.create_task(loses())
    await deleted.wait()
    async with several:
        left.set()
        with pytest.raises(LocksLost):
            await losing
        with pytest.raises(LockAlreadyHeld):  # this task is still in its block
            async with asyncio.timeout(5.0):
                await context.asyncio.lock("a").acquire()
    await nothing_is_left(context, real.view, ["a", "b"])
