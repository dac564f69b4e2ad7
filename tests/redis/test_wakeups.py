"""Being woken, on servers of both kinds: at once by a release, soon by anything else, in order, and at what price."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.backend import BOTH, LONG_S, Backend
from tests.support.background import Background, in_thread
from tests.support.callers import Caller
from tests.support.event_loops import Run
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext
from wheel_lock.testing import fake_context

pytestmark = [pytest.mark.servers("real"), pytest.mark.settings(fallback_interval=600.0)]

NAME = "order:42"
NEVER_S = 600.0  # a fallback that nobody lives to see


def wait_for(context: LockContext, name: str = NAME, **terms: Any) -> Background[Lock]:
    """Begin to wait for a lock, and return when its caller stands in line."""
    lock = context.lock(name, timeout=30.0, thread_local=False, **terms)
    waiting = context.stats().waiting

    def acquire() -> Lock:
        assert lock.acquire()
        return lock

    background = Background(acquire)
    eventually(lambda: context.stats().waiting > waiting or background.done)
    return background


def listeners(backend: Backend, *names: str) -> list[int]:
    """How many connections listen for the release of each lock."""
    channels = [f"wheel_lock:wake:{{{name}}}" for name in names]
    return [count for _, count in backend.view.pubsub_numsub(*channels)]


class Count:
    """Counts the commands of clients that mention some lock, scripts' own commands left out. Real servers only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._client = backend.client()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._begun = threading.Event()
        self.commands: list[str] = []

    def _read(self) -> None:
        with self._client.monitor() as monitor:
            self._begun.set()
            while True:
                seen = monitor.next_command()
                if "that is all" in seen["command"]:
                    return
                if seen["client_type"] != "lua" and NAME in seen["command"]:
                    self.commands.append(seen["command"])

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(LONG_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._backend.view.echo("that is all")
        self._thread.join(LONG_S)
        self._client.close()


# By what


@BOTH
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another process", "the same"])
def test_a_release_wakes_the_waiter(backend: Backend, me: Caller, context: LockContext, elsewhere: bool) -> None:
    waiter = me.locks.lock(NAME, timeout=30.0)
    with (backend.context() if elsewhere else context).lock(NAME, timeout=30.0):
        waiting = waiter.acquire.begin()
        if elsewhere:
            eventually(lambda: listeners(backend, NAME) == [1])
        assert not waiting.done()
    assert waiting.result(LONG_S)
    assert waiter.is_held


@pytest.mark.parametrize("way", ["redis-py", "DEL"])
def test_a_release_that_nobody_publishes_is_noticed_within_the_fallback_interval(backend: Backend, way: str) -> None:
    context = backend.context(fallback_interval=0.2)
    stranger = backend.view.lock(NAME, timeout=60.0)
    assert stranger.acquire()
    waiting = wait_for(context)
    time.sleep(0.5)  # by now the looks are as far apart as they get
    assert not waiting.done
    released_at = time.monotonic()
    if way == "redis-py":
        stranger.release()
    else:
        backend.view.delete(NAME)
    waiting.result()
    assert time.monotonic() - released_at < 0.2 + 3.0


# In which order, and how many


def test_threads_and_tasks_stand_in_one_line(context: LockContext) -> None:
    order: list[str] = []

    async def tasks() -> None:
        async def take_turn() -> None:
            async with context.asyncio.lock(NAME, timeout=30.0):
                order.append("task")

        await asyncio.gather(*[take_turn() for _ in range(10)])

    def take_turn() -> None:
        with context.lock(NAME, timeout=30.0):
            order.append("thread")

    with context.lock(NAME, timeout=30.0):
        threads = [Background(take_turn) for _ in range(10)]
        eventually(lambda: context.stats().waiting == 10)
        threads.append(Background(lambda: asyncio.run(tasks())))
        eventually(lambda: context.stats().waiting == 20)
    for thread in threads:
        thread.result()
    assert order == ["thread"] * 10 + ["task"] * 10


def test_a_thousand_tasks_cost_three_commands_per_grant_at_most_and_two_never_hold_it(real: Backend) -> None:
    context = real.context(fallback_interval=NEVER_S)
    inside: list[int] = []
    grants: list[int] = []

    async def take_turn() -> None:
        async with context.asyncio.lock(NAME, timeout=30.0):
            inside.append(1)
            grants.append(len(inside))
            await asyncio.sleep(0)
            inside.pop()
            if len(grants) == 200:
                raise EOFError

    async def main() -> None:
        tasks = [asyncio.create_task(take_turn()) for _ in range(1000)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in pending:
            task.cancel()
        await asyncio.gather(*done, *pending, return_exceptions=True)

    with Count(real) as count:
        asyncio.run(main())
        eventually(lambda: context.stats().waiting == 0)
    assert set(grants) == {1}
    assert len(count.commands) <= 3 * len(grants)
    eventually(lambda: not real.view.exists(NAME))


# What is left


def left_by_each(take_turns: Callable[[], object], times: int = 20) -> Counter[str]:
    """Of which classes of the library so many objects are left in cycles, each time that ``take_turns`` is called.

    What other tests have dropped may be among it, but not twice.
    """
    take_turns()
    return _garbage(take_turns, times) & _garbage(take_turns, times)


def _garbage(take_turns: Callable[[], object], least: int) -> Counter[str]:
    gc.collect()
    gc.disable()
    try:
        take_turns()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [left for left in gc.garbage if type(left).__module__.startswith("wheel_lock")]
        kinds = Counter(type(left).__name__ for left in ours if getattr(left, "name", "dropped") == "dropped")
        return Counter({name: times for name, times in kinds.items() if times >= least})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_nothing_is_left_to_the_garbage_collector(real: Backend) -> None:
    context = real.context()
    lock, other = [context.lock("dropped", thread_local=False) for _ in range(2)]

    def take_turns() -> None:
        for _ in range(20):
            with lock:
                waiting = Background(other.acquire)
                eventually(lambda: context.stats().waiting == 1)
            assert waiting.result()
            other.release()
            assert lock.acquire()
            lock.release()
            context.release_many(context.acquire_many(["dropped"]).values())

    assert left_by_each(take_turns) == Counter()


def test_tasks_leave_nothing_to_the_garbage_collector(real: Backend, run: Run) -> None:
    context = real.context()
    lock, other = [context.asyncio.lock("dropped", thread_local=False) for _ in range(2)]

    async def take_turns() -> None:
        for _ in range(20):
            async with lock:
                waiting = asyncio.create_task(other.acquire())
                while context.stats().waiting == 0:
                    await asyncio.sleep(0.001)
            assert await waiting
            await other.release()
            locks = await context.asyncio.acquire_many(["dropped"])
            await context.asyncio.release_many(locks.values())

    assert left_by_each(lambda: run(take_turns())) == Counter()


# Under a clock that is moved by hand


def test_a_minute_of_waiting_is_quick(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    held = context.lock(NAME, timeout=30.0, thread_local=False)
    assert held.acquire()
    waiting = [wait_for(context) for _ in range(5)]
    clock.advance(60.0)
    assert held.renewals >= 5
    held.release()
    for thread in waiting:
        thread.result().release()


def test_a_context_for_tests_wakes_its_waiters() -> None:
    with fake_context(fallback_interval=NEVER_S) as context:
        with context.lock(NAME):
            waiting = wait_for(context)
        in_thread(waiting.result().release)
        stranger = LockContext(context.server.client())
        with stranger.lock(NAME):
            waiting = wait_for(context)
        waiting.result().release()
        stranger.close()
