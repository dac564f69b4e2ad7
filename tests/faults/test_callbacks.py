"""Fault 6: what users hang onto the library runs wild; no tick is delayed by it, and nobody else harmed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.faults.support import (
    Losses,
    own_context,
    wait_for_end,
    wait_for_renewals,
)
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LossReason, LostEvent

pytestmark = pytest.mark.slow


def lose_at_the_server(server: RedisServer, *names: str) -> None:
    server.client().delete(*names)


@contextmanager
def bystander(context: LockContext) -> Iterator[Callable[[], None]]:
    """A lease that nothing may happen to. What it yields waits until it has been renewed thrice more."""
    losses = Losses()
    lock = context.lock("bystander", timeout=3.0, renew_every=0.05, on_lost=losses)
    lock.acquire()

    def goes_on() -> None:
        wait_for_renewals(lock, 3)
        assert lock.is_held

    goes_on()
    yield goes_on
    goes_on()
    assert not losses
    lock.release()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_fault_06_a_callback_that_raises_harms_nobody_else(
    redis_server: RedisServer, error: type[BaseException]
) -> None:
    """6. A callback raises, raises SystemExit: no tick is delayed, and the callbacks after it are called."""
    called: list[str | bytes] = []
    losses = Losses()

    def misbehave(event: LostEvent) -> None:
        called.append(event.name)
        raise error("on purpose")

    with own_context(redis_server) as context, bystander(context):
        locks = []
        for name, callback in (("bad", misbehave), ("good", losses), ("worse", misbehave), ("better", losses)):
            lock = context.lock(name, timeout=3.0, renew_every=0.1, on_lost=callback)
            lock.acquire()
            locks.append(lock)
        lose_at_the_server(redis_server, "bad", "good", "worse", "better")
        eventually(lambda: len(losses) == 2 and len(called) == 2)
        assert sorted(map(str, called)) == ["bad", "worse"]
        assert {lock.lost for lock in locks} == {LossReason.KEY_GONE}
        assert context.timer.deaths == 0


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


class RaisingHandler(logging.Handler):
    """A log handler with a bug of its own: it lets its exceptions out."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("disk full")


def test_fault_06_a_log_handler_that_raises_does_not_swallow_a_loss(redis_server: RedisServer) -> None:
    """6. Log handlers are users' code like callbacks are: one that raises must not keep a callback from being told."""
    handler = RaisingHandler(logging.WARNING)
    losses = Losses()
    logger = logging.getLogger("wheel_lock")
    logger.addHandler(handler)
    try:
        with own_context(redis_server) as context, bystander(context):
            for name in ("first", "second"):
                lock = context.lock(name, timeout=3.0, renew_every=0.1, on_lost=losses)
                lock.acquire()
                lose_at_the_server(redis_server, name)
                wait_for_end(lock)
            eventually(lambda: losses.names == ["first", "second"])
    finally:
        logger.removeHandler(handler)
