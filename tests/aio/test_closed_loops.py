"""What becomes of locks whose event loop is closed: nothing is renewed for it, nothing waits for it, nothing is noisy."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.aio.lock_loser import LockLoser
from tests.support.backend import LONG_S, Backend, Losses
from tests.support.event_loops import NewLoop
from tests.support.logged import Log, recorded_warnings
from tests.support.waiting import eventually
from wheel_lock import LockContext, LossReason
from wheel_lock.asyncio import Lock
from wheel_lock.runtime.notifier import NOTIFIER

pytestmark = [
    pytest.mark.loops("asyncio", "uvloop"),
    pytest.mark.settings(response_timeout=1.2),  # requests leave the wheel soon, and what they refer to with them
]

NAME = "order:42"


class Stopped:
    """An event loop that is closed with its tasks in the middle of what they do, as in a program that just ends."""

    def __init__(self, new_loop: NewLoop) -> None:
        self._loop = new_loop()
        self._loop.set_exception_handler(lambda *_: None)  # asyncio itself complains about tasks that never end
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, *coroutines: Coroutine[Any, Any, Any]) -> None:
        self._tasks += [self._loop.create_task(coroutine) for coroutine in coroutines]
        self.turn()

    def hold(self, context: LockContext, lock: Lock) -> None:
        """Let a task go into the block of a lock."""
        self.start(hold(lock))
        self.turn_until(lambda: context.stats().held == 1)
        self.turn()

    def turn(self) -> None:
        """Let its tasks go as far as they can."""
        self._loop.run_until_complete(asyncio.sleep(0))

    def turn_until(self, predicate: Callable[[], object]) -> None:
        def turned() -> object:
            self.turn()
            return predicate()

        eventually(turned, LONG_S)

    @property
    def done(self) -> bool:
        return all(task.done() for task in self._tasks)

    def close(self) -> None:
        self._loop.close()

    def forget(self) -> None:
        """Let go of the loop and of its tasks, and have them collected. An error in a finaliser is a failure."""
        references: list[weakref.ref[Any]] = [weakref.ref(task) for task in self._tasks]
        if not self._loop.is_closed():
            references.append(weakref.ref(self._loop))  # it warns that it was not, so that must not come later
        self._tasks.clear()
        del self._loop

        def collected() -> bool:
            gc.collect()
            return not any(reference() for reference in references)

        # A request that is finished stays in its slot of the wheel until its time limit comes round.
        eventually(collected, LONG_S, interval_s=0.1)


@pytest.fixture
def stopped(new_loop: NewLoop) -> Stopped:
    return Stopped(new_loop)


async def hold(lock: Lock) -> None:
    async with lock:
        await asyncio.sleep(math.inf)


def is_free(real: Backend) -> bool:
    return not real.view.exists(NAME)


def expires(real: Backend) -> None:
    """It is not renewed: a renewal every 0.1 s would bring back the whole timeout, which is long."""
    real.view.pexpire(NAME, 500)
    eventually(lambda: is_free(real), LONG_S)


# While tasks wait


@pytest.mark.parametrize("thread_local", [True, False])
def test_a_grant_to_a_closed_loop(
    real: Backend, context: LockContext, stopped: Stopped, log: Log, thread_local: bool
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        real.view.set(name, "another")
    stopped.start(*[context.asyncio.lock(name, thread_local=thread_local).acquire() for name in names])
    eventually(lambda: context.stats().waiting == 3)
    stopped.close()
    real.view.delete(*names)
    eventually(lambda: context.stats().waiting == 0 and context.stats().held == 0, LONG_S)
    eventually(lambda: real.view.keys() == [], LONG_S)
    assert len(log.said("an event loop was closed before the result of its task arrived")) == 3


@pytest.mark.settings(fallback_interval=0.2)
@pytest.mark.parametrize(
    "make",
    [
        lambda tasks: tasks.lock(NAME),
        lambda tasks: tasks.lock(NAME, retry_every=0.05),
        lambda tasks: tasks.fair_lock(NAME),
        lambda tasks: tasks.multi_lock([NAME, "free"]),
    ],
    ids=["plain", "polling", "fair", "multi"],
)
def test_a_wait_on_a_closed_loop_ends_at_its_next_try(
    real: Backend, context: LockContext, stopped: Stopped, make: Callable[..., Any]
) -> None:
    real.view.set(NAME, "another")
    stopped.start(*[make(context.asyncio).acquire() for _ in range(3)])
    eventually(lambda: context.stats().waiting == 3)
    stopped.close()
    eventually(lambda: context.stats().waiting == 0, LONG_S)
    assert real.view.get(NAME) == b"another"


# While a lock is held


def test_a_held_lock_ends_with_its_loop(real: Backend, context: LockContext, stopped: Stopped, log: Log) -> None:
    losses = Losses()
    lock = context.asyncio.lock(NAME, timeout=60.0, renew_every=0.1, on_lost=losses)
    stopped.start(lock.acquire())
    stopped.turn_until(lambda: lock.is_held)
    with recorded_warnings() as texts:
        stopped.close()
        eventually(lambda: texts)
    assert lock.lost is LossReason.ABANDONED
    expires(real)
    assert texts == ["the lock 'order:42' was abandoned without a release and is renewed no more"]
    assert log.said(f"the event loop that was to be notified of the loss of '{NAME}' is closed")
    assert losses.events == []


@pytest.mark.settings(fallback_interval=0.2)
@pytest.mark.parametrize(
    "acquire",
    [
        lambda tasks, terms: tasks.lock(NAME, thread_local=False, **terms).acquire(),
        lambda tasks, terms: tasks.lock(NAME, thread_local=False, cancel_on_lost=True, **terms).acquire(),
        lambda tasks, terms: tasks.acquire_many([NAME], blocking=True, **terms),
        lambda tasks, terms: tasks.acquire_many([NAME], all_or_nothing=True, blocking=True, **terms),
    ],
    ids=["plain", "guarded", "many", "all"],
)
def test_a_grant_that_its_task_has_not_got_ends_with_the_loop(
    real: Backend, context: LockContext, stopped: Stopped, acquire: Callable[..., Any]
) -> None:
    real.view.set(NAME, "another")
    stopped.start(acquire(context.asyncio, {"timeout": 60.0, "renew_every": 0.1}))
    eventually(lambda: context.stats().waiting == 1)
    real.view.delete(NAME)
    eventually(lambda: context.stats().held == 1, LONG_S)
    with recorded_warnings() as texts:
        stopped.close()  # the task is kept, so nothing is thrown into it
        eventually(lambda: texts)
    expires(real)


def test_what_any_task_may_release_outlives_its_loop(real: Backend, context: LockContext, stopped: Stopped) -> None:
    names = [f"{NAME}:{number}" for number in range(10)]  # a block
    stopped.start(context.asyncio.acquire_many(names, timeout=60.0, renew_every=0.1))
    stopped.turn_until(lambda: context.stats().held == 10 and stopped.done)
    stopped.close()
    renewed = context.stats().renewed
    eventually(lambda: context.stats().renewed >= renewed + 50, LONG_S)
    assert context.stats().held == 10


@pytest.mark.parametrize(
    "make",
    [
        lambda tasks, thread_local: tasks.lock(NAME, thread_local=thread_local),
        lambda tasks, thread_local: tasks.lock(NAME, thread_local=thread_local, cancel_on_lost=True),
        lambda tasks, thread_local: tasks.multi_lock([NAME], thread_local=thread_local),
    ],
    ids=["plain", "guarded", "multi"],
)
@pytest.mark.parametrize("thread_local", [True, False])
def test_a_block_that_is_thrown_away_with_its_loop_releases_its_lock(
    real: Backend, context: LockContext, stopped: Stopped, make: Callable[..., Any], thread_local: bool
) -> None:
    lock = make(context.asyncio, thread_local)
    stopped.hold(context, lock)
    stopped.close()
    stopped.forget()
    eventually(lambda: is_free(real))
    assert context.stats().held == 0
    assert not lock.is_held


def test_a_wait_for_many_on_a_closed_loop_gives_back_what_it_was_granted(
    real: Backend, context: LockContext, stopped: Stopped
) -> None:
    real.view.set("another", "a stranger")
    stopped.start(context.asyncio.acquire_many([NAME, "another"], blocking=True))
    stopped.turn_until(lambda: context.stats().waiting == 1 and not is_free(real))
    stopped.close()
    eventually(lambda: is_free(real), LONG_S)
    real.view.delete("another")
    eventually(lambda: context.stats().waiting == context.stats().held == 0, LONG_S)


def test_a_loop_without_references_does_not_keep_its_locks(real: Backend, context: LockContext) -> None:
    stopped = Stopped(asyncio.new_event_loop)  # uvloop's own timers keep their loop
    stopped.hold(context, context.asyncio.lock(NAME, 60.0, renew_every=0.1, on_lost=print, cancel_on_lost=True))
    with recorded_warnings():
        stopped.forget()
        eventually(lambda: context.stats().held == 0, LONG_S)
        expires(real)
        assert NOTIFIER.drain(LONG_S)


def test_the_loss_of_a_guarded_lock_does_not_mind_a_closed_loop(loser: LockLoser, stopped: Stopped) -> None:
    stopped.hold(loser.context, loser.lock())
    stopped.close()
    loser.clock.jump(60.0)
    assert loser.context.stats().lost_by_reason == {LossReason.NOT_CONFIRMED: 1}
    assert loser.context.timer.deaths == 0


def test_a_context_whose_block_is_thrown_away_is_closed(real: Backend, stopped: Stopped) -> None:
    context, held = real.context(), list[Lock]()

    async def use() -> None:
        async with context.asyncio as tasks:
            lock = tasks.lock(NAME)
            await lock.acquire()
            held.append(lock)
            await asyncio.sleep(math.inf)

    stopped.start(use())
    stopped.turn_until(lambda: held)
    stopped.turn()
    stopped.close()
    stopped.forget()
    eventually(lambda: context.closed)
    eventually(lambda: is_free(real))
    assert held[0].lost is LossReason.CONTEXT_CLOSED
