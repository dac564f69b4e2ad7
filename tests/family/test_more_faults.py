"""What goes wrong at the worst moment: interruptions after the grant, limits, foreign keys, thrown away coroutines."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.aio.support import Run, until
from tests.family.support import NAME, NewThread, make, traces, zmembers
from tests.redis.support import LONG_S, Backend, Background, Losses
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockServerError, LossReason, TooManyLocks
from wheel_lock.lease import Lease
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.reentrancy import BaseReentrantLock
from wheel_lock.testing import settle

PERMITS = f"wheel_lock:permits:{{{NAME}}}"
QUEUE = f"wheel_lock:queue:{{{NAME}}}"
FENCE = f"wheel_lock:fence:{{{NAME}}}"
DAY_S = 86_400.0

reentrant_kinds = pytest.mark.parametrize("kind", ["reentrant", "read", "write"])


class Struck(BaseException):
    """What is raised in the middle of a call, as Ctrl-C would be."""


def strike_after_the_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next acquire when the grant has been taken, and the call has not returned."""
    for handle in (BaseLock, BaseReentrantLock):

        def take(self: BaseLock, lease: Lease, original: Callable[..., None] = handle._take) -> None:
            original(self, lease)
            monkeypatch.undo()
            raise Struck

        monkeypatch.setattr(handle, "_take", take)


# Interrupted after the grant


@reentrant_kinds
def test_after_an_interruption_the_next_acquire_is_a_new_one(
    backend: Backend, context: LockContext, other: LockContext, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    strike_after_the_grant(monkeypatch)
    lock = make(context, kind)
    with pytest.raises(Struck):
        lock.acquire()
    assert lock.count == 0
    again = make(context, kind)
    assert again.acquire(blocking_timeout=LONG_S)
    assert again.count == 1
    settle(context.timer)
    assert again.is_held
    assert again.owned()
    assert context.stats().held == 1
    assert not make(other, "write" if kind == "read" else kind).acquire(blocking=False)
    assert again.release() is True
    assert traces(backend) == []


@pytest.mark.parametrize("kind", ["exclusive", "semaphore", "reentrant", "read", "write"])
def test_after_an_interruption_the_next_acquire_of_a_task_is_a_new_one(
    run: Run, backend: Backend, context: LockContext, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def main() -> None:
        strike_after_the_grant(monkeypatch)
        lock = make(context.asyncio, kind)
        with pytest.raises(Struck):
            await lock.acquire()
        again = make(context.asyncio, kind)
        assert await again.acquire(blocking_timeout=LONG_S)
        assert getattr(again, "count", 1) == 1
        settle(context.timer)
        assert again.is_held
        assert context.stats().held == 1
        assert await again.release() is True
        assert traces(backend) == []

    run(main())


# Limits


@pytest.mark.parametrize("way", ["downgrade", "release"])
def test_the_limits_of_the_outermost_acquire_hold_when_another_object_changes_to_reading(
    backend: Backend, way: str
) -> None:
    context, clock = backend.stepped_context()
    losses, forgotten = Losses(), Losses()
    writer = context.rw_lock(NAME, max_hold=20.0, on_lost=losses).write()
    writer.acquire()
    lock = context.rw_lock(NAME, on_lost=forgotten)
    if way == "downgrade":
        reader = lock.write().downgrade()
    else:
        reader = lock.read()
        reader.acquire()
        assert lock.write().release() is True
    clock.advance(15.0)
    assert reader.is_held
    clock.advance(10.0)
    assert not reader.is_held
    eventually(lambda: reader.lost is LossReason.HOLD_LIMIT, LONG_S)
    eventually(lambda: len(losses.all_told()) == 1, LONG_S)
    assert losses.events[0].reason is LossReason.HOLD_LIMIT
    assert forgotten.all_told() == []
    with pytest.raises(LockLost):
        reader.release()


def test_fair_waiters_do_not_count_as_holders(backend: Backend, other: LockContext) -> None:
    context = backend.context(max_held=2)

    def take_turn() -> bool:
        with context.fair_lock(NAME, blocking_timeout=LONG_S) as lock:
            return lock.is_held

    with context.fair_lock(NAME):
        waiters = [Background(take_turn) for _ in range(5)]
        eventually(lambda: context.stats().waiting == 5, LONG_S)
        eventually(lambda: backend.view.zcard(QUEUE) == 5, LONG_S)
    assert [waiter.result() for waiter in waiters] == [True] * 5
    assert traces(backend) == []


def test_a_fair_waiter_whose_turn_comes_when_there_is_no_room_gives_it_to_the_next(
    backend: Backend, other: LockContext, new_thread: NewThread
) -> None:
    context, there = backend.context(max_held=1), new_thread()
    holder, something = other.fair_lock(NAME), context.lock("something")
    holder.acquire()
    waiting = there.begin(context, context.fair_lock(NAME, blocking_timeout=LONG_S).acquire)
    eventually(lambda: backend.view.zcard(QUEUE) == 1, LONG_S)
    something.acquire()
    holder.release()
    with pytest.raises(TooManyLocks):
        waiting.result(LONG_S)
    assert holder.acquire(blocking_timeout=LONG_S), "it is free again"
    holder.release()
    something.release()
    eventually(lambda: traces(backend) == [], LONG_S)
    assert context.stats().held == 0


# Something else at the server


def test_a_permits_key_of_another_type_is_an_error_of_that_call_only(
    real: Backend, proxy: TcpProxy, far: LockContext
) -> None:
    bystander, before = far.lock("bystander"), proxy.accepted
    bystander.acquire()
    real.view.rpush(PERMITS, "something else")
    semaphore = far.semaphore(NAME, 3)
    with pytest.raises(LockServerError, match="permits key"):
        semaphore.locked()
    with pytest.raises(LockServerError, match="permits key"):
        semaphore.acquire()
    assert far.rw_lock(NAME).write().locked() is False, "a lock that has nothing to do with permits"
    assert proxy.accepted == before, "the connection stays"
    assert bystander.release() is True
    assert not real.view.exists(NAME)


def test_something_else_in_place_of_the_queue_does_not_spoil_a_release(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    lock = context.fair_lock(NAME, on_lost=losses)
    lock.acquire()
    backend.view.set(QUEUE, "something else")
    assert lock.release() is True
    assert not backend.view.exists(NAME)
    assert lock.lost is None
    assert losses.all_told() == []
    assert backend.view.get(QUEUE) == b"something else"


@pytest.mark.parametrize("kind", ["exclusive", "fair", "write"])
def test_an_absurd_fence_of_somebody_else_is_a_clear_error(
    real: Backend, proxy: TcpProxy, far: LockContext, kind: str
) -> None:
    real.view.set(FENCE, "9" * 23)
    bystander, before = far.lock("bystander"), proxy.accepted
    bystander.acquire()
    with pytest.raises(LockServerError, match="fence key"):
        make(far, kind, fencing=True).acquire(blocking=False)
    assert proxy.accepted == before, "the connection stays"
    assert bystander.release() is True
    assert real.view.get(FENCE) == b"9" * 23
    assert not real.view.exists(NAME)


def test_a_key_does_not_outlive_its_last_member_by_long(backend: Backend, context: LockContext) -> None:
    reader = context.rw_lock(NAME, timeout=DAY_S).read()
    reader.acquire()
    seconds, microseconds = backend.view.time()
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    backend.view.zadd(NAME, {b"i:" + b"A" * 22: -(now_ms + 3_000)})  # a writer that waited, and was killed
    assert backend.view.pttl(NAME) > 3_000
    reader.release()
    assert zmembers(backend) == [b"i:" + b"A" * 22]
    assert 0 < backend.view.pttl(NAME) <= 3_000


def test_a_key_lives_on_for_the_last_of_those_who_still_hold_it(backend: Backend, context: LockContext) -> None:
    short, long = context.semaphore(NAME, 3, timeout=20.0), context.semaphore(NAME, 3, timeout=DAY_S)
    middle = context.semaphore(NAME, 3, timeout=60.0)
    for permit in (short, long, middle):
        permit.acquire()
    long.release()
    assert 50_000 < backend.view.pttl(NAME) <= 60_000
    assert middle.is_held
    middle.release()
    assert 10_000 < backend.view.pttl(NAME) <= 20_000
    short.release()
    assert traces(backend) == []


# A writer that stops writing and reads on, in asyncio


@pytest.mark.parametrize("when", ["before the reply", "after the reply"])
def test_a_task_that_is_cancelled_while_it_stops_writing_reads_on(
    run: Run, backend: Backend, context: LockContext, when: str
) -> None:
    losses = Losses()

    async def main() -> None:
        lock = context.asyncio.rw_lock(NAME, on_lost=losses)
        writer, reader = lock.write(), lock.read()
        await writer.acquire()
        await reader.acquire()
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None

        def cancel() -> None:
            if when == "after the reply":
                settle(context.timer)  # it has come, and the task has not run since
            me.cancel()

        loop.call_soon(cancel)
        with pytest.raises(asyncio.CancelledError):
            await writer.release()
        me.uncancel()
        await until(lambda: reader.is_held)
        assert (writer.count, reader.count) == (0, 1)
        assert not writer.is_held
        assert await reader.owned()
        assert zmembers(backend) == [reader.token]
        assert await reader.release() is True
        assert traces(backend) == []

    run(main())
    assert losses.all_told() == []


def throw_away(coroutine: Coroutine[Any, Any, None], when: Callable[[], bool]) -> None:
    """Run it until something is true; then close the event loop, and end it there, as the collector would."""

    def turned() -> bool:
        loop.run_until_complete(asyncio.sleep(0))
        return when()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # asyncio itself complains about a task that never ends
    task = loop.create_task(coroutine)
    eventually(turned, LONG_S)
    assert not task.done()
    loop.close()
    coroutine.close()  # raises what it ends with, unless that is what it is told


@pytest.mark.slow
def test_a_coroutine_that_is_thrown_away_while_it_stops_writing_ends_quietly(
    real: Backend, proxy: TcpProxy, far: LockContext
) -> None:
    async def write_and_read() -> None:
        lock: Any = far.asyncio.rw_lock(NAME, timeout=1.0)
        writer, reader = lock.write(), lock.read()
        await writer.acquire()
        await reader.acquire()
        proxy.to_client.delay_s = math.inf
        await writer.release()

    throw_away(write_and_read(), lambda: any(member.startswith(b"r:") for member in zmembers(real)))
    proxy.to_client.delay_s = 0.0

    def free() -> bool:
        gc.collect()
        return traces(real) == []

    eventually(free, LONG_S, "nothing is renewed for it", interval_s=0.05)
    eventually(lambda: far.stats().held == 0, LONG_S)
