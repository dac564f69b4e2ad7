"""What each call gives, as a type checker sees it. An error that mypy does not find is one, too: an unused ignore."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from wheel_lock import (
    ContextStats,
    HashedWheelTimer,
    HeldLock,
    Leader,
    Leadership,
    Lock,
    LockContext,
    LossReason,
    LostEvent,
    MultiLock,
    ReadLock,
    ReadWriteLock,
    ReentrantLock,
    Semaphore,
    Timeout,
    WriteLock,
)
from wheel_lock import asyncio as family
from wheel_lock.asyncio import AsyncContext
from wheel_lock.asyncio import Lock as AsyncLock
from wheel_lock.decorator import Locked
from wheel_lock.testing import FakeContext, fake_context


@pytest.fixture(scope="module")
def context() -> Iterator[LockContext]:
    with fake_context() as context:
        yield context


def test_a_lock_for_threads(context: LockContext) -> None:
    lock = context.lock("order:42", 30.0, on_lost=lambda event: print(event.reason))
    assert_type(lock, Lock)
    assert_type(lock.acquire(blocking=False, blocking_timeout=None), bool)
    assert_type(lock.extend(1.0, replace_ttl=True), bool)
    assert_type(lock.reacquire(), bool)
    assert_type(lock.locked(), bool)
    assert_type(lock.owned(), bool)
    assert_type(lock.is_held, bool)
    assert_type(lock.remaining(), float)
    assert_type(lock.lost, LossReason | None)
    assert_type(lock.token, bytes | None)
    assert_type(lock.fence, int | None)
    assert_type(lock.renewals, int)
    assert_type(lock.timeout, float)
    assert_type(lock.name, str | bytes)
    text = lock.export()
    assert_type(text, str)
    with context.adopt(text, thread_local=False) as adopted:
        assert_type(adopted, Lock)
    with lock as inside:
        assert_type(inside, Lock)


def test_a_lock_for_tasks(context: LockContext) -> None:
    async def main() -> None:
        tasks = context.asyncio
        assert_type(tasks, AsyncContext)
        lock = tasks.lock("order:42", 30.0, cancel_on_lost=True, blocking_timeout=1.0, fencing=True)
        assert_type(lock, AsyncLock)
        assert_type(await lock.acquire(), bool)
        assert_type(await lock.extend(1.0), bool)
        assert_type(await lock.reacquire(), bool)
        assert_type(await lock.locked(), bool)
        assert_type(await lock.owned(), bool)
        assert_type(lock.is_held, bool)
        assert_type(lock.lost, LossReason | None)
        text = await lock.export()
        assert_type(text, str)
        async with await tasks.adopt(text, cancel_on_lost=True) as adopted:
            assert_type(adopted, AsyncLock)
        async with lock as inside:
            assert_type(inside, AsyncLock)
        by_text = await tasks.acquire_many(["a"])
        assert_type(by_text, dict[str, AsyncLock | None])
        await tasks.release_many(by_text.values())
        by_bytes = await tasks.acquire_many([b"a"], all_or_nothing=True)
        assert_type(by_bytes, dict[bytes, AsyncLock | None])
        await tasks.release_many(by_bytes.values())
        assert_type(tasks.stats(), ContextStats)
        assert_type(tasks.held(), list[HeldLock])
        assert_type(tasks.timer, HashedWheelTimer)
        assert_type(tasks.closed, bool)

    asyncio.run(main())


def test_the_family_for_threads(context: LockContext) -> None:
    reentrant = context.reentrant_lock("order:42", fencing=True, blocking_timeout=1.0)
    assert_type(reentrant, ReentrantLock)
    with reentrant as inside:
        assert_type(inside, ReentrantLock)
        assert_type(inside.acquire(), bool)
        assert_type(inside.release(), bool)
        assert_type(inside.count, int)
    pair = context.rw_lock("table:7")
    assert_type(pair, ReadWriteLock)
    with pair.read() as reader:
        assert_type(reader, ReadLock)
    writer = pair.write()
    assert_type(writer, WriteLock)
    assert_type(writer.acquire(), bool)
    assert_type(writer.downgrade(), ReadLock)
    assert_type(pair.read().release(), bool)
    assert_type(context.fair_lock("printer", thread_local=False), Lock)
    with context.semaphore("api", 5) as permit:
        assert_type(permit, Semaphore)
        assert_type(permit.permits, int)
        permit.set_permits(7)
        permit.set_permits(None)
    with context.multi_lock(["a", b"b"]) as together:
        assert_type(together, MultiLock)
        assert_type(together.names, tuple[str | bytes, ...])
        assert_type(together.lost, LossReason | None)
        assert_type(together.locks["a"], Lock)


def test_the_family_for_tasks(context: LockContext) -> None:
    async def main() -> None:
        tasks = context.asyncio
        async with tasks.reentrant_lock("order:42", cancel_on_lost=True) as reentrant:
            assert_type(reentrant, family.ReentrantLock)
            assert_type(await reentrant.acquire(), bool)
            assert_type(await reentrant.release(), bool)
        async with tasks.rw_lock("table:7").read() as reader:
            assert_type(reader, family.ReadLock)
        writer = tasks.rw_lock("table:7").write()
        assert_type(await writer.acquire(), bool)
        assert_type(await writer.downgrade(), family.ReadLock)
        await tasks.rw_lock("table:7").read().release()
        async with tasks.fair_lock("printer") as fair:
            assert_type(fair, AsyncLock)
        async with tasks.semaphore("api", 5) as permit:
            assert_type(permit, family.Semaphore)
            await permit.set_permits(None)
        async with tasks.multi_lock(["a", "b"]) as together:
            assert_type(together, family.MultiLock)

    asyncio.run(main())


def test_locks_in_bulk_are_found_by_names_of_the_type_that_was_given(context: LockContext) -> None:
    by_text = context.acquire_many(f"shard:{number}" for number in range(3))
    assert_type(by_text, dict[str, Lock | None])
    context.release_many(by_text.values())
    by_bytes = context.acquire_many({b"a", b"b"})
    assert_type(by_bytes, dict[bytes, Lock | None])
    context.release_many(by_bytes.values())
    names: list[str | bytes] = ["a", b"b"]
    by_either = context.acquire_many(names)
    assert_type(by_either, dict[str | bytes, Lock | None])
    context.release_many(by_either.values())


def test_locks_that_change_hands_in_bulk(context: LockContext) -> None:
    texts = context.export_many(context.acquire_many(["a", "b"], blocking=True, blocking_timeout=1.0).values())
    assert_type(texts, dict[str | bytes, str | None])
    adopted = context.adopt_many(texts.values())
    assert_type(adopted, dict[str | bytes, Lock | None])
    context.release_many(adopted.values())

    async def main() -> None:
        tasks = context.asyncio
        texts = await tasks.export_many((await tasks.acquire_many(["a"], blocking=True, all_or_nothing=True)).values())
        adopted = await tasks.adopt_many(texts.values(), cancel_on_lost=True)
        assert_type(adopted, dict[str | bytes, AsyncLock | None])
        await tasks.release_many(adopted.values())

    asyncio.run(main())


def test_leaders(context: LockContext) -> None:
    def elected(leadership: Leadership) -> None:
        assert_type(leadership.fence, int)
        assert_type(leadership.lost, LossReason | None)
        assert_type(leadership.ended, threading.Event)

    with context.leader("leader", on_elected=elected) as leader:
        assert_type(leader, Leader)
        assert_type(leader.leadership, Leadership | None)
        assert_type(leader.is_leader, bool)

    async def demoted(leadership: family.Leadership) -> None:
        assert_type(leadership.ended, asyncio.Event)

    async def main() -> None:
        async with context.asyncio.leader("leader", on_demoted=demoted) as leader:
            assert_type(leader, family.Leader)
            assert_type(leader.leadership, family.Leadership | None)
            assert_type(leader.resign(), bool)

    asyncio.run(main())


def test_a_decorated_function_keeps_its_type(context: LockContext) -> None:
    @context.locked("report:{user_id}", timeout=5.0, blocking=False)
    def report(user_id: int, *, kind: str = "daily") -> list[str]:
        return [kind]

    @context.locked("report:{user_id}")
    async def fetch(user_id: int, *, kind: str = "daily") -> list[str]:
        return [kind]

    class Account:
        number = 7

        @context.locked("{self.number}:{amount}")
        def pay(self, amount: int) -> bool:
            return amount > 0

    async def main() -> None:
        assert_type(await fetch(7, kind="weekly"), list[str])

    assert_type(context.locked("report"), Locked)
    assert_type(report(7, kind="weekly"), list[str])
    assert_type(Account().pay(7), bool)
    plain: Callable[[int], list[str]] = report
    coroutine: Callable[[int], Coroutine[Any, Any, list[str]]] = fetch
    assert plain(7) == ["daily"]
    assert asyncio.run(coroutine(7)) == ["daily"]
    asyncio.run(main())


def test_a_context(context: LockContext) -> None:
    with fake_context() as own:
        assert_type(own, FakeContext)
    assert_type(LockContext.from_url("redis://127.0.0.1:1"), LockContext)
    assert_type(context.stats(), ContextStats)
    assert_type(context.held(), list[HeldLock])
    assert_type(context.closed, bool)
    assert_type(context.timer.new_timeout(lambda timeout: None, delay=60.0), Timeout)


def test_a_callback(context: LockContext) -> None:
    def on_lost(event: LostEvent) -> None:
        assert_type(event.name, str | bytes)
        assert_type(event.reason, LossReason)
        assert_type(event.fence, int | None)

    context.lock("order:42", on_lost=on_lost)
    context.asyncio.lock("order:42", on_lost=on_lost)


if TYPE_CHECKING:

    async def mistakes(context: LockContext) -> None:
        context.lock(42)  # type: ignore[arg-type]
        context.semaphore("api", 5, fencing=True)  # type: ignore[call-arg]
        context.reentrant_lock("order:42", thread_local=False)  # type: ignore[call-arg]
        context.lock("order:42", blocking_timeot=1.0)  # type: ignore[call-arg]
        context.lock("order:42", on_lost=lambda: None)  # type: ignore[arg-type, misc]
        context.asyncio.lock("order:42", cancel_on_lose=True)  # type: ignore[call-arg]
        context.asyncio.lock("order:42", blocking="yes")  # type: ignore[arg-type]
        context.asyncio.lock("order:42").acquire()  # type: ignore[unused-coroutine]
        with context.asyncio.lock("order:42"):  # type: ignore[attr-defined]
            pass
        async with context.lock("order:42"):  # type: ignore[attr-defined]
            pass
        context.release_many([context.asyncio.lock("order:42")])  # type: ignore[list-item]
        context.acquire_many([1, 2])  # type: ignore[type-var]
        context.adopt(b"text")  # type: ignore[arg-type]

        @context.locked("report:{user_id}")
        def report(user_id: int) -> str:
            return ""

        report("7")  # type: ignore[arg-type]
        report()  # type: ignore[call-arg]
