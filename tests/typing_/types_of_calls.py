"""What each call gives, as a type checker sees it. An error that mypy does not find is one, too: an unused ignore.

Nothing of it is run. `public_calls.py` has every public name; here are the types that depend on what a call is given.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from wheel_lock import Lock, LockContext
from wheel_lock.asyncio import Lock as AsyncLock
from wheel_lock.decorator import Locked


async def locks_in_bulk_are_found_by_names_of_the_type_that_was_given(context: LockContext) -> None:
    names: list[str | bytes] = ["a", b"b"]
    assert_type(context.acquire_many(f"shard:{number}" for number in range(3)), dict[str, Lock | None])
    assert_type(context.acquire_many({b"a", b"b"}), dict[bytes, Lock | None])
    assert_type(context.acquire_many(names), dict[str | bytes, Lock | None])
    assert_type(await context.asyncio.acquire_many(["a"]), dict[str, AsyncLock | None])
    assert_type(await context.asyncio.acquire_many([b"a"], all_or_nothing=True), dict[bytes, AsyncLock | None])
    texts = context.export_many(context.acquire_many(["a", "b"]).values())
    assert_type(texts, dict[str | bytes, str | None])
    assert_type(context.adopt_many(texts.values()), dict[str | bytes, Lock | None])
    assert_type(await context.asyncio.adopt_many(texts.values()), dict[str | bytes, AsyncLock | None])


async def a_decorated_function_keeps_its_type(context: LockContext) -> None:
    @context.locked("report:{user_id}", timeout=5.0, blocking=False)
    def report(user_id: int, *, kind: str = "daily") -> list[str]:
        return [kind]

    @context.locked("report:{user_id}")
    async def fetch(user_id: int, *, kind: str = "daily") -> list[str]:
        return [kind]

    class Account:
        @context.locked("{self.number}:{amount}")
        def pay(self, amount: int) -> bool:
            return amount > 0

    assert_type(context.locked("report"), Locked)
    assert_type(report(7, kind="weekly"), list[str])
    assert_type(await fetch(7, kind="weekly"), list[str])
    assert_type(Account().pay(7), bool)
    plain: Callable[[int], list[str]] = report
    coroutine: Callable[[int], Coroutine[Any, Any, list[str]]] = fetch
    print(plain, coroutine)


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
