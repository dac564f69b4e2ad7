"""A slow callback of a user delays only that user's later callbacks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.faults.support import (
    own_context,
)
from tests.support.backend import Losses
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LostEvent

pytestmark = pytest.mark.slow


def test_a_callback_that_sleeps_delays_no_other_context_and_no_task(redis_server: RedisServer) -> None:
    """Its own context reports the other losses later, and in order."""
    wake, asleep = threading.Event(), threading.Event()
    behind, beside = Losses(), Losses()

    def sleep(event: LostEvent) -> None:
        asleep.set()
        wake.wait(30.0)

    async def hold(context: LockContext) -> None:
        async with context.asyncio.lock("task", 3.0, renew_every=0.1, cancel_on_lost=True):
            redis_server.client().delete("task")
            await asyncio.sleep(20.0)

    with own_context(redis_server) as context, own_context(redis_server) as another:
        try:
            names = ["sleepy", "first", "second", "third"]
            locks = [context.lock("sleepy", timeout=3.0, renew_every=0.1, on_lost=sleep)]
            locks += [context.lock(name, timeout=3.0, renew_every=0.1, on_lost=behind) for name in names[1:]]
            locks.append(another.lock("beside", timeout=3.0, renew_every=0.1, on_lost=beside))
            for lock in locks:
                lock.acquire()
            for lock in locks[:-1]:
                redis_server.client().delete(lock.name)
                eventually(lambda: not lock.is_held, message=f"{lock} ends")  # noqa: B023
            assert asleep.wait(5.0)
            with pytest.raises(LockLost):
                asyncio.run(hold(context))
            redis_server.client().delete("beside")
            eventually(lambda: beside.events)
            assert not behind.events
        finally:
            wake.set()
        eventually(lambda: len(behind.events) == 3)
        assert behind.names == names[1:]
