"""Faults in programs of asyncio: cancellation at every await, a blocked or closed event loop, the end of the thread.

Rows 13 to 15, and 7 as tasks see it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.faults.support import Pulse, now, own_context
from tests.redis.test_exit import Script
from tests.support.backend import LONG_S
from tests.support.event_loops import NewLoop, ended, loop_factory, nothing_is_left, until, waiting
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.timers import raise_in, timer_thread
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockTimeout, LockUnavailable, LossReason
from wheel_lock.asyncio import AsyncContext

pytestmark = [pytest.mark.servers("real"), pytest.mark.settings(own_timer=True)]

CANCELLATIONS = 1500
TURNS = 50  # of those who go undisturbed
AT_ONCE = 40
NAMES = [f"order:{number}" for number in range(12)]


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    new_loop: NewLoop = loop_factory(getattr(request, "param", "asyncio"))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        yield runner


# Cancellation (14)


class Storm:
    """Tasks that are cancelled at a random await, among others that go on undisturbed."""

    def __init__(self, tasks: AsyncContext, seed: int, pulse: Pulse) -> None:
        self._tasks = tasks
        self._pulse = pulse
        self._chosen = random.Random(seed)
        self._inside: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.turns = 0
        self._over = False

    def _name(self) -> str:
        return self._chosen.choice(NAMES)

    async def _be_inside(self, *names: str) -> None:
        self._inside.update(names)
        try:
            assert all(self._inside[name] == 1 for name in names), "two tasks hold one lock"
            await asyncio.sleep(self._chosen.choice((0.0, 0.0005)))
        finally:
            self._inside.subtract(names)

    async def block(self) -> None:
        name = self._name()
        async with self._tasks.lock(name, 10.0, cancel_on_lost=self._chosen.random() < 0.5):
            await self._be_inside(name)

    async def by_hand(self) -> None:
        name = self._name()
        lock = self._tasks.lock(name, 10.0, fencing=True, retry_every=self._chosen.choice((None, 0.001)))
        began = now()
        limit = self._chosen.choice((None, 0.001))
        try:
            granted = await lock.acquire(blocking_timeout=limit)
        except LockTimeout:  # next to no time, and nothing has come through the network meanwhile
            assert limit is not None
            assert self._pulse.stood_s(began) > 0.0
            return
        if granted:
            try:
                await lock.extend(1.0)
                await self._be_inside(name)
                await lock.owned()
            finally:
                await lock.release()

    async def limited(self) -> None:
        name = self._name()
        lock = self._tasks.lock(name, 10.0)
        try:
            async with asyncio.timeout(self._chosen.random() * 0.005), lock:
                await self._be_inside(name)
        except TimeoutError:
            pass

    async def waited_for(self) -> None:
        name = self._name()
        lock = self._tasks.lock(name, 10.0)
        try:
            await asyncio.wait_for(lock.acquire(), self._chosen.random() * 0.005)
        except TimeoutError:
            return
        try:
            await self._be_inside(name)
        finally:
            await lock.release()

    async def group(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self.block())

    async def bulk(self) -> None:
        names = self._chosen.sample(NAMES, 4)
        locks = await self._tasks.acquire_many(names, 10.0, all_or_nothing=True)
        try:
            if None not in locks.values():
                await self._be_inside(*names)
        finally:
            await self._tasks.release_many(locks.values())

    async def hand_over(self) -> None:
        name = self._name()
        lock = self._tasks.lock(name, 10.0)
        await lock.acquire()
        async with await self._tasks.adopt(await lock.export()):
            await self._be_inside(name)

    async def _undisturbed(self) -> None:
        while not self._over:
            await self.block()
            self.turns += 1

    async def _strike(self, work: Callable[[], Awaitable[None]], longest_s: float) -> None:
        async def as_task() -> None:
            await work()

        task = asyncio.create_task(as_task())
        await asyncio.sleep(self._chosen.random() * longest_s)
        task.cancel()
        await ended(task)
        if task.cancelled():
            self.outcomes["cancelled"] += 1
        else:
            self.outcomes["done" if task.exception() is None else repr(task.exception())] += 1

    async def blow(self, longest_s: float) -> None:
        others = [asyncio.create_task(self._undisturbed()) for _ in range(5)]
        kinds = [self.block, self.by_hand, self.limited, self.waited_for, self.group, self.bulk, self.hand_over]
        while self.outcomes["cancelled"] < CANCELLATIONS or self.turns < TURNS:
            works = self._chosen.choices(kinds, k=AT_ONCE)
            await asyncio.gather(*[self._strike(work, longest_s) for work in works])
        self._over = True
        await asyncio.gather(*others)


@pytest.mark.parametrize(("runner", "network"), [("asyncio", "slow"), ("uvloop", "quick")], indirect=["runner"])
def test_tasks_that_are_cancelled_anywhere_leave_no_lock_that_nobody_holds(
    runner: asyncio.Runner, redis_server: RedisServer, proxy: TcpProxy, pulse: Pulse, network: str
) -> None:
    with own_context(redis_server if network == "quick" else proxy.url) as context:

        async def main() -> Storm:
            async with context.asyncio.lock("warm-up"):
                pass
            for faults in (proxy.to_server, proxy.to_client):
                faults.delay_s, faults.jitter_s = 0.0002, 0.001
            storm = Storm(context.asyncio, 5, pulse)
            await storm.blow(longest_s=0.01 if network == "slow" else 0.006)
            await nothing_is_left(context, redis_server.client(), NAMES)
            return storm

        storm = runner.run(main())
        assert storm.outcomes["cancelled"] >= CANCELLATIONS
        assert set(storm.outcomes) <= {"cancelled", "done"}
        assert context.timer.deaths == 0
        assert context.stats().lost == 0
        assert redis_server.client().keys("order:*") == []


# A blocked event loop (15)


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"], indirect=True)
def test_renewal_goes_on_while_the_event_loop_is_blocked(
    runner: asyncio.Runner, redis_server: RedisServer, context: LockContext
) -> None:
    async def main() -> None:
        told: list[object] = []
        lock = context.asyncio.lock("order:42", timeout=1.0, renew_every=0.1, cancel_on_lost=True)
        lost = context.asyncio.lock("lost", timeout=1.0, renew_every=0.1, on_lost=told.append)
        waiter = asyncio.create_task(context.asyncio.lock("order:42").acquire())
        async with lock:
            await lost.acquire()
            redis_server.client().delete("lost")
            looks = []
            until_s = time.monotonic() + 1.2
            while time.monotonic() < until_s:  # for longer than a timeout nothing else runs on the loop
                looks.append(lock.is_held and redis_server.client().get("order:42") == lock.token)
                time.sleep(0.02)
            assert all(looks)
            assert lock.renewals >= 4
            assert lost.lost is LossReason.KEY_GONE
            assert told == []
            await until(lambda: told)
        assert await waiter

    runner.run(main())


# The end of the thread (7)


def test_the_death_of_the_thread_is_told_to_tasks_that_hold_and_to_tasks_that_wait(
    runner: asyncio.Runner, redis_server: RedisServer, context: LockContext
) -> None:
    async def hold() -> None:
        async with context.asyncio.lock("order:42", cancel_on_lost=True):
            await asyncio.sleep(LONG_S)

    async def main() -> None:
        holding = asyncio.create_task(hold())
        await until(lambda: context.stats().held == 1)
        waiter = asyncio.create_task(context.asyncio.lock("order:42").acquire())
        await waiting(context, 1)
        # Python 3.11 would raise it in a thread that is just being started, too, and whoever starts that waits for ever.
        await until(lambda: not context.timer.busy)
        raise_in(timer_thread(context.timer), SystemExit)
        context.timer.wake()
        await ended(holding, waiter)
        error = holding.exception()
        assert isinstance(error, LockLost)
        assert error.reason is LossReason.THREAD_DIED
        assert isinstance(waiter.exception(), LockUnavailable)
        redis_server.client().delete("order:42")
        async with context.asyncio.lock("order:42"):
            pass

    runner.run(main())


def test_a_task_does_not_wait_for_what_died_with_the_thread(
    runner: asyncio.Runner, context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        monkeypatch.undo()
        raise SystemExit

    async def main() -> None:
        monkeypatch.setattr(context._engine, "query", die)
        with pytest.raises(LockUnavailable, match="ended before it answered"):
            async with asyncio.timeout(LONG_S):
                await context.asyncio.lock("order:42").locked()
        assert not await context.asyncio.lock("order:42").locked()

    runner.run(main())
    assert context.timer.deaths == 1


def test_a_task_does_not_wait_for_a_timer_that_was_stopped(runner: asyncio.Runner, redis_server: RedisServer) -> None:
    with own_context(redis_server) as context:

        async def main() -> None:
            redis_server.client().set("order:42", "somebody")
            tasks = [asyncio.create_task(context.asyncio.lock("order:42").acquire()) for _ in range(3)]
            await waiting(context, 3)
            await asyncio.to_thread(context.timer.stop)
            await ended(*tasks)
            assert all(isinstance(task.exception(), Exception) for task in tasks)

        runner.run(main())


# The end of the program (13)

ASYNC_BEGINNING = """
import asyncio
async def hold(name, seconds):
    async with context.asyncio.lock(name, cancel_on_lost=True):
        await asyncio.sleep(seconds)
async def busy():
    tasks.extend(asyncio.create_task(hold(f"order:{number % 3}", 60.0)) for number in range(6))
    while context.stats().held < 3 or context.stats().waiting < 3:
        await asyncio.sleep(0.001)
tasks = []
"""

ENDINGS = {
    "main() returns": "async def main():\n    await busy()\n    ready()\nasyncio.run(main())",
    "the loop is closed in the middle": "loop = asyncio.new_event_loop()\nloop.set_exception_handler(lambda *_: None)\n"
    "loop.run_until_complete(busy())\nready()\nloop.close()",
    "sys.exit() in a task": "async def main():\n    await busy()\n    ready()\n    sys.exit(0)\nasyncio.run(main())",
}


@pytest.mark.parametrize("caught", [True, False])
def test_a_program_that_is_interrupted_frees_its_locks(redis_server: RedisServer, caught: bool) -> None:
    asked = "asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)\n"
    text = f"async def main():\n    {asked}    await busy()\n    ready()\n    await asyncio.sleep(60.0)\n"
    ending = "try:\n    asyncio.run(main())\nexcept (asyncio.CancelledError, KeyboardInterrupt):\n    sys.exit(3)\n"
    # A program that reads its orders would be interrupted in that: ready() must not wait here.
    orders = "def ready():\n    print('ready', flush=True)\n"
    script = Script(redis_server.port, ASYNC_BEGINNING + orders + text + ending)
    script.signal(signal.SIGTERM if caught else signal.SIGINT)
    code, errors, _ = script.end()
    assert (code, errors) == (3, "")
    assert redis_server.client().keys() == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_ends_with_tasks_that_hold_and_wait_ends_quickly_and_frees_its_locks(
    redis_server: RedisServer, ending: str
) -> None:
    script = Script(redis_server.port, ASYNC_BEGINNING + ENDINGS[ending])
    code, errors, took_s = script.end()
    assert code == 0, errors
    assert [
        line for line in errors.splitlines() if "destroyed but it is pending" not in line and "<Task" not in line
    ] == []
    assert took_s < 3.0
    eventually(lambda: redis_server.admin.keys() == [], 10.0)
