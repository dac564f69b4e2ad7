"""A callback of a user that takes its time delays nobody else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.faults.support import (
    Losses,
    own_context,
    wait_for_end,
)
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LostEvent

pytestmark = pytest.mark.slow


def lose_at_the_server(server: RedisServer, *names: str) -> None:
    server.client().delete(*names)


def test_fault_55_a_callback_that_sleeps_delays_no_other_context_and_no_task(redis_server: RedisServer) -> None:
    """55. A callback of one context sleeps: tasks and other contexts are told on time, and its own later, in order."""
    wake, asleep = threading.Event(), threading.Event()
    behind, beside = Losses(), Losses()

    def sleep(event: LostEvent) -> None:
        asleep.set()
        wake.wait(30.0)

    async def hold(context: LockContext) -> float:
        told: list[LostEvent] = []
        lock = context.asyncio.lock("task", 3.0, renew_every=0.1, cancel_on_lost=True, on_lost=told.append)

        async def work() -> None:
            async with lock:
                lose_at_the_server(redis_server, "task")
                await asyncio.sleep(20.0)

        with pytest.raises(LockLost):
            await work()
        while not told:
            await asyncio.sleep(0.01)
        return told[0].deadline - context.timer.clock.now()

    with own_context(redis_server) as context, own_context(redis_server) as another:
        try:
            names = ["sleepy", "first", "second", "third"]
            locks = [context.lock("sleepy", timeout=3.0, renew_every=0.1, on_lost=sleep)]
            locks += [context.lock(name, timeout=3.0, renew_every=0.1, on_lost=behind) for name in names[1:]]
            locks.append(another.lock("beside", timeout=3.0, renew_every=0.1, on_lost=beside))
            for lock in locks:
                lock.acquire()
            for lock in locks[:-1]:
                lose_at_the_server(redis_server, str(lock.name))
                wait_for_end(lock)
            assert asleep.wait(5.0)
            assert asyncio.run(hold(context)) > 0.0
            lose_at_the_server(redis_server, "beside")
            eventually(lambda: beside)
            assert not behind
        finally:
            wake.set()
        eventually(lambda: len(behind) == 3)
        assert behind.names == names[1:]
