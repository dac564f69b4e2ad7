"""Very many tasks, one after the other: nothing of them stays in memory."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, without_collection
from tests.support.event_loops import Run
from tests.support.lock_types import KINDS, make
from tests.support.logged import recorded_warnings
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockNotHeld, LockServerError, decorator
from wheel_lock.lease import Lease
from wheel_lock.locks.callers import CallerFuture

pytestmark = pytest.mark.settings(
    response_timeout=1.2
)  # requests leave the wheel soon, and what they refer to with them

OURS = ("wheel_lock.", "_asyncio", "asyncio.")


@pytest.fixture(autouse=True)
def a_clean_start() -> None:
    gc.collect()


def census() -> Counter[str]:
    """How many objects there are of each class of ours, and how many tasks and futures."""
    gc.collect()
    classes = (type(thing) for thing in gc.get_objects())
    return Counter(f"{kind.__module__}.{kind.__name__}" for kind in classes if str(kind.__module__).startswith(OURS))


async def use(context: LockContext, number: int) -> None:
    """What a task may do with locks."""
    lock = context.asyncio.lock(f"order:{number % 50}", cancel_on_lost=number % 2 == 0, thread_local=number % 3 == 0)
    async with lock:
        assert lock.is_held
    if number % 7 == 0:
        await lock.acquire()
        adopted = await context.asyncio.adopt(await lock.export())
        await adopted.release()
    if number % 11 == 0:
        locks = await context.asyncio.acquire_many([f"bulk:{number}:{part}" for part in range(3)])
        await context.asyncio.release_many(locks.values())


@pytest.mark.loops("asyncio", "uvloop")
def test_many_tasks_leave_no_object_behind(run: Run, context: LockContext) -> None:
    @context.locked("report:{number}")
    async def report(number: int) -> None:
        await asyncio.sleep(0)

    async def some(count: int) -> None:
        await asyncio.gather(*[use(context, number) for number in range(count)])
        await asyncio.gather(*[report(number % 20) for number in range(count // 2)])

    with context.lock("warm-up"):
        pass
    run(some(100))  # connections, scripts, groups: what stays on purpose
    before = census()
    run(some(200))
    more: dict[str, int] = {}

    def no_more() -> bool:
        more.clear()
        more.update({kind: count - before[kind] for kind, count in census().items() if count > before[kind] + 3})
        return not more

    eventually(no_more, LONG_S, interval_s=0.1)
    assert decorator._calls == {}


async def _acquire_a_list(tasks: Any, real: Backend) -> None:
    real.view.lpush("a list", "x")
    await tasks.lock("a list").acquire()


async def _release_one_of_several(tasks: Any, real: Backend) -> None:
    several = tasks.multi_lock(["a", "b"])
    await several.acquire()
    await several.locks["a"].release()
    await several.release()


async def _release_what_is_no_lock(tasks: Any, real: Backend) -> None:
    await tasks.release_many([real])


async def _release_a_lost_lock_once(tasks: Any, real: Backend) -> None:
    lock = tasks.reentrant_lock("a")
    await lock.acquire()
    await lock.acquire()
    real.view.delete("a")
    with suppress(LockLost):
        await lock.extend(1.0)
    await lock.release()


FAILURES = {
    _acquire_a_list: LockServerError,
    _release_one_of_several: LockNotHeld,
    _release_what_is_no_lock: TypeError,
    _release_a_lost_lock_once: LockLost,
}


@pytest.mark.parametrize("operation", ["acquire", "adopt", "acquire_many", *FAILURES])
def test_a_lock_that_is_dropped_is_abandoned_without_a_collection(
    run: Run, real: Backend, context: LockContext, operation: Any
) -> None:
    async def main() -> None:
        tasks = context.asyncio
        lock = tasks.lock("order:42")
        if operation == "acquire_many":
            await tasks.acquire_many(["order:42"], thread_local=True)
            return
        await lock.acquire()
        if operation == "adopt":
            await tasks.adopt(await lock.export())
        if operation in FAILURES:
            with suppress(FAILURES[operation]):
                await operation(tasks, real)
                raise AssertionError("it has not failed")

    async def until_it_is_abandoned() -> None:
        await main()
        async with asyncio.timeout(LONG_S):
            while context.stats().held:
                await asyncio.sleep(0.01)

    with recorded_warnings() as texts, without_collection():
        run(until_it_is_abandoned())
        eventually(lambda: texts)
    assert texts == ["the lock 'order:42' was abandoned without a release and is renewed no more"]


@pytest.mark.parametrize("face", ["threads", "tasks"])
def test_an_acquire_and_a_release_leave_no_cycle_behind(run: Run, context: LockContext, face: str) -> None:
    async def work() -> None:
        for kind in KINDS:
            lock: Any = make(context if face == "threads" else context.asyncio, kind)
            for call in (lock.acquire, lock.release):
                outcome = call()
                if asyncio.iscoroutine(outcome):
                    await outcome

    def left() -> set[int]:
        # By type: isinstance() would ask a weak proxy, of which the object may be gone.
        return {id(thing) for thing in gc.get_objects() if issubclass(type(thing), (Lease, CallerFuture))}

    gc.collect()
    before = left()  # of other tests in this process
    with without_collection():
        run(work())
        eventually(lambda: left() <= before, LONG_S, interval_s=0.05)
