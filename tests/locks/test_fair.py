"""The fair lock: first come, first served, across contexts; who gives up or dies keeps nobody waiting."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, Clock
from tests.support.callers import Caller, NewCaller, ThreadCaller
from tests.support.event_loops import Run, ended, until
from tests.support.lock_types import NAME, deaf, traces, zmembers
from tests.support.waiting import eventually
from wheel_lock import (
    Lock,
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    LossReason,
    TooManyLocks,
    WrongThread,
)

pytestmark = pytest.mark.servers("real")

QUEUE = f"wheel_lock:queue:{{{NAME}}}"
ALIVE = f"wheel_lock:alive:{{{NAME}}}"
CHANNEL = f"wheel_lock:wake:fair:{{{NAME}}}"


def queued(backend: Backend, places: int) -> None:
    """Return when so many stand in the queue."""
    eventually(lambda: backend.view.zcard(QUEUE) == places, LONG_S, f"{places} are queued")


def new(caller: Caller, **terms: Any) -> Any:
    """A fair lock, whose acquire waits for long unless it is told otherwise."""
    return caller.locks.fair_lock(NAME, **{"blocking_timeout": LONG_S, **terms})


def lock_of(context: LockContext, **terms: Any) -> Any:
    """The same for a thread of its own that is never ended; what it still waits for ends with its context."""
    return new(ThreadCaller(context), **terms)


def test_it_is_held_and_released_like_any_other(
    api: str, backend: Backend, me: Caller, another: Caller, stranger: Caller
) -> None:
    lock = new(me)
    with lock:
        assert backend.view.get(NAME) == lock.token
        assert lock.owned()
        assert lock.locked()
        assert not new(stranger).acquire(blocking=False)
        with pytest.raises(LockAlreadyHeld):
            lock.acquire()
        if api == "threads":  # a task may release what another has acquired
            with pytest.raises(WrongThread):
                another.sees(lock).release()
        assert lock.extend(30.0)
        assert lock.remaining() > 50.0
    assert traces(backend) == []
    with pytest.raises(LockNotHeld):
        lock.release()


def test_it_excludes_the_plain_lock_of_its_name(context: LockContext, other: LockContext) -> None:
    with context.fair_lock(NAME):
        assert not other.lock(NAME).acquire(blocking=False)
    with context.lock(NAME):
        assert not other.fair_lock(NAME).acquire(blocking=False)


def test_it_is_granted_in_the_order_of_arrival_across_contexts(backend: Backend, new_caller: NewCaller) -> None:
    contexts = [backend.context(fallback_interval=30.0) for _ in range(3)]
    with contexts[0].fair_lock(NAME):
        locks, waits = [], []
        for number in range(8):
            locks.append(new(new_caller(contexts[number % 3])))
            waits.append(locks[-1].acquire.begin())
            queued(backend, number + 1)
    for number, lock in enumerate(locks):
        assert waits[number].result(LONG_S)
        assert not any(later.done() for later in waits[number + 1 :])
        lock.release()
    assert traces(backend) == []


def test_who_does_not_want_to_wait_does_not_jump_the_queue(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    lock, holder = new(new_caller(waiter)), context.fair_lock(NAME)
    holder.acquire()
    waiting = lock.acquire.begin()
    queued(backend, 1)
    backend.view.delete(NAME)  # free, and nobody has said so
    assert not context.fair_lock(NAME).acquire(blocking=False)
    assert waiting.result(LONG_S), "and has been told by that try"
    assert lock.release()
    assert traces(backend) == []
    with pytest.raises(LockLost):
        holder.release()


def test_who_gives_up_leaves_the_queue_and_those_behind_go_on(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    other, clock = backend.stepped_context()
    lock, holder = new(new_caller(waiter)), context.fair_lock(NAME)
    holder.acquire()
    impatient = new(new_caller(other)).acquire.begin(blocking_timeout=0.3)
    queued(backend, 1)
    waiting = lock.acquire.begin()
    queued(backend, 2)
    clock.advance(0.3)
    assert impatient.result(LONG_S) is False
    queued(backend, 1)  # it says so without waiting for the server
    assert backend.view.zcard(ALIVE) == 1
    holder.release()
    assert waiting.result(LONG_S)
    assert lock.release()
    assert traces(backend) == []


@pytest.mark.parametrize("when", ["while it waits", "when it is its turn"])
def test_one_who_dies_is_skipped(backend: Backend, context: LockContext, when: str) -> None:
    holder = context.fair_lock(NAME)
    holder.acquire()
    if when == "while it waits":
        dead, _ = backend.stepped_context(fallback_interval=0.5)  # whose clock stands still: it is not heard of again
        stuck = lock_of(dead).acquire.begin()
        queued(backend, 1)
        eventually(lambda: not backend.view.exists(ALIVE), LONG_S)
    else:
        proxy = backend.proxy()
        dead = backend.context_through(proxy, fallback_interval=0.5, close_timeout=0.1)
        stuck = lock_of(dead).acquire.begin()
        queued(backend, 1)
    lock = lock_of(context)
    waiting = lock.acquire.begin()
    queued(backend, 1 if when == "while it waits" else 2)
    if when == "when it is its turn":
        proxy.to_server.delay_s = proxy.to_client.delay_s = math.inf
    holder.release()
    assert waiting.result(LONG_S)
    assert lock.release()
    dead.close()
    with pytest.raises(Exception, match="closed"):
        stuck.result(LONG_S)


def test_a_waiter_keeps_its_place_for_as_long_as_it_waits(backend: Backend, context: LockContext) -> None:
    lock = lock_of(backend.context(fallback_interval=0.5))
    with context.fair_lock(NAME):
        waiting = lock.acquire.begin()
        queued(backend, 1)
        [place] = zmembers(backend, QUEUE)
        first = backend.view.zscore(ALIVE, place)
        assert first is not None
        eventually(lambda: (backend.view.zscore(ALIVE, place) or 0) > first + 500, LONG_S)
        assert zmembers(backend, QUEUE) == [place]
    assert waiting.result(LONG_S)
    assert lock.release()


@pytest.mark.parametrize("terms", [{"retry_every": 0.02}, {"retry_every": 0.02, "max_attempts": 20}])
def test_who_polls_stands_in_the_queue_too(backend: Backend, context: LockContext, terms: dict[str, float]) -> None:
    holder, lock = context.fair_lock(NAME), lock_of(backend.context(), **terms)
    holder.acquire()
    polling = lock.acquire.begin()
    queued(backend, 1)
    if "max_attempts" in terms:
        assert polling.result(LONG_S) is False
        eventually(lambda: traces(backend) == [NAME.encode()], LONG_S)
    holder.release()
    if "max_attempts" not in terms:
        assert polling.result(LONG_S)
        assert lock.release()
    assert traces(backend) == []


def test_who_may_not_wait_any_more_does_not_stay_in_the_queue(backend: Backend, context: LockContext) -> None:
    crowded = backend.context(max_waiting=1)
    lock = lock_of(crowded)
    with context.fair_lock(NAME):
        waiting = lock.acquire.begin()
        with pytest.raises(TooManyLocks):
            crowded.fair_lock(NAME).acquire()
        queued(backend, 1)
    assert waiting.result(LONG_S)
    assert lock.release()
    assert traces(backend) == []


def test_a_failure_of_one_who_waits_leaves_nothing_granted_to_the_others(
    request: pytest.FixtureRequest, backend: Backend, context: LockContext
) -> None:
    """The second's time is up while the first's grant is on its way: both are told of the failure, and nothing is left."""
    proxy, clock = backend.proxy(), Clock()
    timer = backend.timer(clock)
    waiter = backend.context_through(proxy, timer=timer, response_timeout=20.0, fallback_interval=30.0)
    request.addfinalizer(timer.stop)  # before the context is closed, which would wait for the clock to move
    holder = context.fair_lock(NAME)
    holder.acquire()
    waits = []
    for places in (1, 2):
        waits.append(lock_of(waiter, blocking_timeout=None).acquire.begin())
        queued(backend, places)
    eventually(lambda: backend.view.pubsub_numsub(CHANNEL)[0][1] == 1)
    first, second = zmembers(backend, QUEUE)

    def heard_of(place: bytes, act: Callable[[], object]) -> None:
        """Do something by which a waiter asks again."""
        before = backend.view.zscore(ALIVE, place)
        act()
        eventually(lambda: backend.view.zscore(ALIVE, place) != before, LONG_S)

    clock.advance(2.0)
    heard_of(first, lambda: backend.view.publish(CHANNEL, first))  # so that it asks again at 12 s, the second at 10 s
    clock.advance(0.0)
    proxy.to_client.delay_s = math.inf
    holder.release()
    heard_of(second, lambda: clock.jump(8.2))
    clock.jump(2.3)
    eventually(lambda: backend.view.exists(NAME), LONG_S, "the first has been granted it, and has not heard of it")
    clock.jump(18.0)
    for waiting in waits:
        with pytest.raises((LockTimeout, LockUnavailable)):
            waiting.result(LONG_S)
    proxy.to_client.delay_s = 0.0
    eventually(lambda: traces(backend) == [], LONG_S)
    assert waiter.stats().held == 0


# Handed over


def test_it_can_be_handed_over_and_the_queue_goes_on(backend: Backend, me: Caller, other: LockContext) -> None:
    waiter, _ = deaf(backend)
    behind, lock = lock_of(waiter), new(me, timeout=20.0, fencing=True)
    lock.acquire()
    waiting = behind.acquire.begin()
    queued(backend, 1)
    fence, text = lock.fence, lock.export()
    adopted = other.adopt(text)
    assert isinstance(adopted, Lock)
    assert (lock.is_held, adopted.is_held) == (False, True)
    assert adopted.fence == fence
    assert adopted.timeout == 20.0
    assert backend.view.get(NAME) == adopted.token
    assert adopted.reacquire()
    assert not waiting.done()
    with pytest.raises(LockNotHeld, match="handed over"):
        lock.release()
    adopted.release()
    assert waiting.result(LONG_S)
    assert behind.release()
    assert adopted.acquire(blocking=False), "as a fair lock"
    adopted.release()
    assert traces(backend) == []
    with pytest.raises(LockLost):
        me.context.adopt(text)


def test_a_loss_is_told_and_the_lock_can_be_had_again(backend: Backend, context: LockContext) -> None:
    lock = context.fair_lock(NAME, renew_every=0.02)
    lock.acquire()
    backend.view.delete(NAME)
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S)
    with pytest.raises(LockLost):
        lock.release()
    with lock:
        assert lock.is_held


def test_a_task_that_is_cancelled_leaves_its_place(
    run: Run, backend: Backend, context: LockContext, other: LockContext
) -> None:
    order: list[int] = []

    async def take_turn(face: LockContext, number: int) -> None:
        async with face.asyncio.fair_lock(NAME, blocking_timeout=LONG_S):
            order.append(number)

    async def main() -> None:
        async with context.asyncio.fair_lock(NAME):
            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(take_turn((context, other)[number % 2], number)))
                await until(lambda number=number: backend.view.zcard(QUEUE) == number + 1)  # type: ignore[misc]
            tasks[2].cancel()
            await ended(tasks[2])
            await until(lambda: backend.view.zcard(QUEUE) == 3)
        await ended(*tasks)

    run(main())
    assert order == [0, 1, 3]
    assert traces(backend) == []
