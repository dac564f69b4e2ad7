"""Waiting, for every kind of lock: woken by the release, and nothing left behind by who gives up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.aio.support import Run, ended, until, waiting
from tests.family.support import (
    EXCLUDING,
    KINDS,
    NAME,
    WAKING,
    NewThread,
    deaf,
    listening,
    make,
    traces,
    waited_in_vain,
    zmembers,
)
from tests.redis.support import LONG_S, Backend
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, LockContext, LockNotAcquired, TooManyLocks

pairs = pytest.mark.parametrize(("holder", "waiter"), EXCLUDING, ids=lambda kind: str(kind))
waking = pytest.mark.parametrize(("holder", "waiter"), WAKING, ids=lambda kind: str(kind))
kinds = pytest.mark.parametrize("kind", KINDS)


def nothing_but_the_holder(backend: Backend, holder: str) -> bool:
    """Whether there is no queue, no intent and no member but the holder's own."""
    expected = [f"{NAME}:a", f"{NAME}:b", NAME] if holder == "multi" else [NAME]
    if traces(backend) != sorted(name.encode() for name in expected):
        return False
    if holder in ("read", "write", "semaphore"):
        return len(zmembers(backend)) == 1
    return True


@waking
def test_a_release_in_another_context_wakes_the_waiter(
    backend: Backend, context: LockContext, new_thread: NewThread, holder: str, waiter: str
) -> None:
    waits, _ = deaf(backend)
    there, lock, held = new_thread(), make(waits, waiter), make(context, holder)
    held.acquire()
    waiting = there.begin(waits, lambda: lock.acquire(blocking_timeout=LONG_S))
    eventually(lambda: listening(backend) >= 1)
    assert not waiting.done()
    held.release()
    assert waiting.result(LONG_S)
    assert there.do(lambda: lock.is_held)
    there.do(lock.release)
    assert waits.stats().held == 0


@waking
def test_a_release_in_the_same_context_wakes_the_waiter(
    backend: Backend, new_thread: NewThread, holder: str, waiter: str
) -> None:
    context, _ = deaf(backend)
    there, lock, held = new_thread(), make(context, waiter), make(context, holder)
    held.acquire()
    waiting = there.begin(context, lambda: lock.acquire(blocking_timeout=LONG_S))
    held.release()
    assert waiting.result(LONG_S)
    there.do(lock.release)


@waking
def test_a_task_is_woken_by_a_release_in_another_context(
    run: Run, backend: Backend, context: LockContext, holder: str, waiter: str
) -> None:
    waits, _ = deaf(backend)

    async def main() -> None:
        held = make(context, holder)
        held.acquire()
        lock = make(waits.asyncio, waiter)
        task = asyncio.create_task(hold(lock))
        await waiting(waits, 1)
        held.release()
        async with asyncio.timeout(LONG_S):
            await task

    async def hold(lock: Any) -> None:
        async with lock:
            assert lock.is_held

    run(main())
    assert waits.stats().held == 0


@waking
def test_a_close_of_the_holders_context_wakes_the_waiter(
    backend: Backend, new_thread: NewThread, holder: str, waiter: str
) -> None:
    context, (waits, _) = backend.context(), deaf(backend)
    there, lock, held = new_thread(), make(waits, waiter), make(context, holder)
    held.acquire()
    waiting = there.begin(waits, lambda: lock.acquire(blocking_timeout=LONG_S))
    eventually(lambda: listening(backend) >= 1)
    context.close()
    assert waiting.result(LONG_S)
    there.do(lock.release)


@pairs
def test_who_gives_up_when_the_time_is_up_leaves_nothing(
    backend: Backend, context: LockContext, holder: str, waiter: str
) -> None:
    other, clock = backend.stepped_context()
    held, lock = make(context, holder), make(other, waiter)

    def enter() -> None:
        with make(other, waiter, blocking_timeout=0.01):
            pytest.fail("the block must not run")

    held.acquire()
    assert waited_in_vain(other, clock, 0.15, lambda: lock.acquire(blocking_timeout=0.15)) is False
    assert other.stats().waiting == 0
    eventually(lambda: nothing_but_the_holder(backend, holder), LONG_S)
    with pytest.raises(LockNotAcquired):
        waited_in_vain(other, clock, 0.02, enter)
    eventually(lambda: nothing_but_the_holder(backend, holder), LONG_S)
    held.release()
    assert lock.acquire(blocking_timeout=LONG_S)
    lock.release()


@pairs
def test_a_task_that_is_cancelled_leaves_nothing_and_lets_those_behind_it_go_on(
    run: Run, backend: Backend, context: LockContext, holder: str, waiter: str
) -> None:
    waits, clock = backend.stepped_context()

    async def main() -> None:
        held = make(context, holder)
        held.acquire()
        first = asyncio.create_task(make(waits.asyncio, waiter).acquire())
        await waiting(waits, 1)
        second = asyncio.create_task(hold(make(waits.asyncio, waiter)))
        await waiting(waits, 2)
        first.cancel()
        await ended(first)
        assert first.cancelled()
        await waiting(waits, 1)
        second.cancel()
        await ended(second)
        await until(lambda: nothing_but_the_holder(backend, holder))
        third = asyncio.create_task(hold(make(waits.asyncio, waiter)))
        fourth = asyncio.create_task(hold(make(waits.asyncio, waiter)))
        await waiting(waits, 2)
        third.cancel()
        await ended(third)
        held.release()
        clock.advance(1.0)  # for the kinds of which none wakes the other
        async with asyncio.timeout(LONG_S):
            await fourth

    async def hold(lock: Any) -> None:
        async with lock:
            assert lock.is_held

    run(main())
    assert waits.stats().held == waits.stats().waiting == 0


def test_a_writer_that_gives_up_lets_the_readers_in_that_it_held_back(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    (waits, _), (other, clock) = deaf(backend), deaf(backend)
    writing, reading = new_thread(), new_thread()
    reader = make(waits, "read")
    with make(context, "read"):
        impatient = writing.begin(other, lambda: make(other, "write").acquire(blocking_timeout=0.4))
        eventually(lambda: any(member.startswith(b"i:") for member in zmembers(backend)))
        held_back = reading.begin(waits, lambda: reader.acquire(blocking_timeout=LONG_S))
        assert not held_back.done()
        clock.advance(0.4)
        assert impatient.result(LONG_S) is False
        assert held_back.result(LONG_S), "while the other one still reads"
    reading.do(reader.release)


@kinds
def test_only_so_many_may_wait(backend: Backend, context: LockContext, new_thread: NewThread, kind: str) -> None:
    crowded = backend.context(max_waiting=1)
    holder = {"read": "write"}.get(kind, kind)
    there, lock, held = new_thread(), make(crowded, kind), make(context, holder)
    held.acquire()
    waiting = there.begin(crowded, lambda: lock.acquire(blocking_timeout=LONG_S))
    with pytest.raises(TooManyLocks):
        make(crowded, kind).acquire()
    assert not make(crowded, kind).acquire(blocking=False)
    held.release()
    assert waiting.result(LONG_S)
    there.do(lock.release)
    assert crowded.stats().held == 0


@pairs
def test_a_close_ends_the_wait_and_leaves_nothing(
    backend: Backend, context: LockContext, new_thread: NewThread, holder: str, waiter: str
) -> None:
    closed = backend.context()
    held = make(context, holder)
    held.acquire()
    waiting = new_thread().begin(closed, lambda: make(closed, waiter).acquire(blocking_timeout=LONG_S))
    closed.close()
    with pytest.raises(ContextClosed):
        waiting.result(LONG_S)
    eventually(lambda: nothing_but_the_holder(backend, holder), LONG_S)
    held.release()


@kinds
@pytest.mark.parametrize("terms", [{"retry_every": 0.01}, {"max_attempts": 1000, "retry_every": 0.01}])
def test_who_polls_gets_it_without_being_woken(
    backend: Backend, context: LockContext, new_thread: NewThread, kind: str, terms: dict[str, Any]
) -> None:
    holder = {"read": "write"}.get(kind, kind)
    polls = backend.context()
    there, lock, held = new_thread(), make(polls, kind, blocking_timeout=LONG_S, **terms), make(context, holder)
    held.acquire()
    waiting = there.begin(polls, lock.acquire)
    assert not waiting.done()
    held.release()
    assert waiting.result(LONG_S)
    there.do(lock.release)


@pytest.mark.parametrize("crowded", [False, True], ids=["one holds it", "one holds it and one waits"])
def test_two_reentrant_locks_whose_waiters_are_woken_on_one_channel_are_still_two(
    context: LockContext, new_thread: NewThread, crowded: bool
) -> None:
    """Redisson's channel for `x` is the one for `{x}`, too: that may cost a look, but no lock."""
    plain, there, elsewhere = context.reentrant_lock("x", blocking_timeout=LONG_S), new_thread(), new_thread()
    plain.acquire()
    if crowded:
        waiting = there.begin(context, plain.acquire)
    tagged = context.reentrant_lock("{x}")
    assert elsewhere.do(lambda: tagged.acquire(blocking_timeout=LONG_S / 2)), "it is free"
    assert not tagged.acquire(blocking=False)
    second = new_thread().begin(context, lambda: tagged.acquire(blocking_timeout=LONG_S))
    assert elsewhere.do(tagged.release)
    assert second.result(LONG_S)
    plain.release()
    if crowded:
        assert waiting.result(LONG_S)
        there.do(plain.release)
