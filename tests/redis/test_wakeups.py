"""Being woken, on servers of both kinds: at once by a release, soon by anything else, in order, and at what price."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.backend import BOTH, LONG_S, Backend, Clock, connected
from tests.support.background import Background, in_thread
from tests.support.callers import Caller
from tests.support.event_loops import Run
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, Lock, LockContext, LockNotAcquired, LockTimeout, TooManyLocks
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


@contextmanager
def small_stacks() -> Iterator[None]:
    """Threads that are started here are cheap enough for a thousand of them."""
    before = threading.stack_size(128 * 1024)
    try:
        yield
    finally:
        threading.stack_size(before)


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


@pytest.mark.parametrize("way", ["release_many", "close", "give up"])
def test_whatever_way_it_is_released_the_waiter_is_woken(backend: Backend, context: LockContext, way: str) -> None:
    other = backend.context()
    lock = other.lock(NAME, timeout=30.0, thread_local=False)
    assert lock.acquire()
    waiting = wait_for(context)
    eventually(lambda: listeners(backend, NAME) == [1])
    if way == "release_many":
        other.release_many([lock])
    elif way == "close":
        other.close()
    else:
        lease = lock._lease
        assert lease is not None
        other._engine.submit(lambda: other._engine.router.renewer.clean_up([lease]))
    assert waiting.result().is_held


def test_a_fenced_waiter_is_woken_too_and_its_fence_is_larger(backend: Backend, context: LockContext) -> None:
    with backend.context().lock(NAME, timeout=30.0, fencing=True) as first:
        waiting = wait_for(context, fencing=True)
        eventually(lambda: listeners(backend, NAME) == [1])
    second = waiting.result()
    assert first.fence is not None
    assert second.fence is not None
    assert second.fence > first.fence


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


@BOTH
def test_the_end_of_the_holders_lease_is_known_beforehand(backend: Backend, context: LockContext) -> None:
    began = time.monotonic()
    backend.view.set(NAME, "crashed", px=400)
    waiting = wait_for(context)
    waiting.result()
    assert 0.35 <= time.monotonic() - began < 0.4 + 3.0


def test_a_waiter_behind_a_holder_that_renews_waits_on(backend: Backend, context: LockContext) -> None:
    holder = backend.context().lock(NAME, timeout=1.5, renew_every=0.25, thread_local=False)
    assert holder.acquire()
    waiting = wait_for(context)
    eventually(lambda: holder.renewals >= 7, LONG_S)  # which is when the lease that the waiter knows of has ended
    assert not waiting.done
    holder.release()
    waiting.result()


# In which order, and how many


def test_those_of_one_process_get_it_in_the_order_in_which_they_came(context: LockContext) -> None:
    order: list[int] = []

    def take_turn(number: int) -> None:
        with context.lock(NAME, timeout=30.0):
            order.append(number)

    with context.lock(NAME, timeout=30.0):
        threads = []
        for number in range(20):
            threads.append(Background(lambda number=number: take_turn(number)))  # type: ignore[misc]
            eventually(lambda number=number: context.stats().waiting == number + 1)  # type: ignore[misc]
    for thread in threads:
        thread.result()
    assert order == list(range(20))


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


def test_a_thousand_threads_cost_three_commands_per_grant_at_most_and_two_never_hold_it(real: Backend) -> None:
    context = real.context(fallback_interval=NEVER_S)
    inside: list[int] = []
    grants: list[int] = []
    enough = threading.Event()

    def take_turn() -> None:
        with context.lock(NAME, timeout=30.0, blocking_timeout=60.0):
            if enough.is_set():
                return
            inside.append(1)
            grants.append(len(inside))
            if len(grants) == 200:
                enough.set()
            inside.pop()

    with Count(real) as count, small_stacks():
        with context.lock(NAME, timeout=30.0):
            threads = [Background(take_turn) for _ in range(1000)]
            eventually(lambda: context.stats().waiting == 1000)
            assert listeners(real, NAME) == [1]
        assert enough.wait(60.0)
        until_then = len(count.commands)
        for thread in threads:
            thread.result(60.0)
    assert grants == [1] * 200
    assert until_then <= 3 * 200
    assert len(count.commands) <= 3 * 1001
    assert context.stats().waiting == 0
    assert not real.view.exists(NAME)


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


def test_thousands_of_names_are_waited_for_at_once(real: Backend) -> None:
    names = [f"many:{number}" for number in range(3_000)]
    holder, context = real.context(), real.context(fallback_interval=NEVER_S)
    held = holder.acquire_many(names, timeout=60.0)

    async def take_turn(name: str) -> None:
        async with context.asyncio.lock(name, timeout=60.0):
            pass

    async def main() -> None:
        tasks = [asyncio.create_task(take_turn(name)) for name in names]
        while not (context.stats().waiting == len(names) and set(listeners(real, *names)) == {1}):
            await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        await asyncio.to_thread(holder.release_many, held.values())
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 60.0))
    assert real.view.keys("many:*") == []
    assert (context.stats().waiting, context.stats().held) == (0, 0)


def test_no_more_than_max_waiting_may_wait(backend: Backend) -> None:
    backend.view.set(NAME, "somebody", px=60_000)
    context = backend.context(max_waiting=3)
    waiting = [wait_for(context) for _ in range(3)]
    with pytest.raises(TooManyLocks, match="3 callers wait for locks already"):
        context.lock(NAME).acquire()
    assert not context.lock(NAME).acquire(blocking=False)
    context.close()
    for thread in waiting:
        with pytest.raises(ContextClosed):
            thread.result()


# What is left


def test_nothing_is_left_of_those_who_went(real: Backend) -> None:
    context, clock = real.stepped_context()
    real.view.set(NAME, "somebody", px=60_000)
    for _ in range(3):
        waiting = Background(context.lock(NAME, blocking_timeout=1.0).acquire)
        eventually(lambda: context.stats().waiting == 1)
        clock.advance(1.1)
        assert not waiting.result()
    clock.advance(3.0)
    eventually(lambda: listeners(real, NAME) == [0], message="the subscription is ended")
    assert context.stats().waiting == 0
    assert real.view.get(NAME) == b"somebody"


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


def test_tasks_that_come_and_go_as_they_like_leave_nothing_behind(backend: Backend) -> None:
    """Two contexts, few names, callers that are cancelled, run out of time, hold for a moment or not at all."""
    contexts = [connected(backend.context(fallback_interval=0.3)) for _ in range(2)]
    names = [f"few:{number}" for number in range(4)]
    chance = random.Random(42)
    holders: dict[str, int] = dict.fromkeys(names, 0)
    grants: list[str] = []
    until = time.monotonic() + 1.0

    async def come_and_go() -> None:
        while time.monotonic() < until or (len(grants) <= 50 and time.monotonic() < until + LONG_S):
            name = chance.choice(names)
            patience_s = chance.choice([None, None, 0.0, 0.01, 0.1])
            lock = chance.choice(contexts).asyncio.lock(name, timeout=5.0, blocking_timeout=patience_s)
            try:
                async with asyncio.timeout(chance.choice([0.0, 0.001, 0.01, 0.1, 5.0])):
                    async with lock:
                        holders[name] += 1
                        try:
                            assert holders[name] == 1, "two hold it"
                            grants.append(name)
                            await asyncio.sleep(chance.choice([0.0, 0.0, 0.001]))
                        finally:
                            holders[name] -= 1
            except (TimeoutError, LockNotAcquired, LockTimeout):  # the last where no answer came within the patience
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*[come_and_go() for _ in range(40)])

    asyncio.run(main())
    assert set(grants) == set(names)
    assert len(grants) > 50
    for context in contexts:
        eventually(lambda: not (context.stats().waiting or context.stats().held), message=repr(context))  # noqa: B023
    eventually(lambda: not backend.view.exists(*names), LONG_S, "every name is free")
    eventually(lambda: not any(listeners(backend, *names)), LONG_S, "nobody listens")


# Under a clock that is moved by hand


@BOTH
def test_a_release_needs_no_time_to_pass(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    with context.lock(NAME, timeout=30.0):
        waiting = wait_for(context)
    waiting.result().release()
    clock.advance(0.0)
    assert not context.timer.busy


def test_patience_ends_when_the_clock_is_moved(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    backend.view.set(NAME, "somebody", px=60_000)
    waiting = Background(context.lock(NAME, blocking_timeout=60.0, thread_local=False).acquire)
    eventually(lambda: context.stats().waiting == 1)
    clock.advance(59.9)
    assert not waiting.done
    clock.advance(10.0)
    assert not waiting.result()
    clock.advance(10.0)
    assert context.timer.next_due_at() is None, "nothing is left on the wheel"


def test_the_fallback_comes_when_the_clock_is_moved_and_the_subscription_stays(backend: Backend) -> None:
    clock, proxy = Clock(), backend.proxy()
    context = backend.context_through(proxy, timer=backend.timer(clock))
    backend.view.set(NAME, "somebody", px=60_000)
    waiting = wait_for(context)
    eventually(lambda: listeners(backend, NAME) == [1])
    clock.advance(0.0)
    accepted = proxy.accepted
    clock.advance(30.0)
    assert proxy.accepted == accepted
    assert listeners(backend, NAME) == [1]
    backend.view.delete(NAME)
    clock.advance(5.1)
    assert waiting.result().is_held


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


def test_two_contexts_with_several_waiters_each_take_turns(real: Backend) -> None:
    contexts = [real.context(), real.context()]
    grants = [0, 0]
    until = time.monotonic() + 1.0

    def loop(number: int) -> None:
        while time.monotonic() < until or (sum(grants) <= 100 and time.monotonic() < until + LONG_S):
            with contexts[number].lock(NAME, timeout=5.0):
                grants[number] += 1

    for background in [Background(partial(loop, number)) for number in (0, 1) for _ in range(4)]:
        background.result(60.0)
    assert sum(grants) > 100
    assert min(grants) > sum(grants) / 20, grants
