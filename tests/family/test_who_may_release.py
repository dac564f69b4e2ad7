"""Who may release what another thread, or another task, has acquired: as the table in docs/locks.md says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.redis.support import in_thread
from wheel_lock import LockContext, WrongThread

MAKE: dict[str, Callable[..., Any]] = {
    "lock": lambda face, **terms: face.lock("name", **terms),
    "fair_lock": lambda face, **terms: face.fair_lock("name", **terms),
    "multi_lock": lambda face, **terms: face.multi_lock(["name", "other"], **terms),
    "semaphore": lambda face, **terms: face.semaphore("name", 2, **terms),
    "reentrant_lock": lambda face: face.reentrant_lock("name"),
    "read": lambda face: face.rw_lock("name").read(),
    "write": lambda face: face.rw_lock("name").write(),
}
SHARED = ("lock", "fair_lock", "multi_lock", "semaphore")
OF_A_TASK = ("semaphore", "reentrant_lock", "read", "write")


@pytest.mark.parametrize("kind", MAKE)
def test_only_the_thread_that_acquired_it(context: LockContext, kind: str) -> None:
    lock = MAKE[kind](context)
    assert lock.acquire()
    with pytest.raises(WrongThread):
        in_thread(lock.release)
    assert lock.is_held
    lock.release()


@pytest.mark.parametrize("kind", SHARED)
def test_any_thread_where_it_belongs_to_none(context: LockContext, kind: str) -> None:
    lock = MAKE[kind](context, thread_local=False)
    assert lock.acquire()
    in_thread(lock.release)
    assert not lock.is_held


@pytest.mark.parametrize("kind", OF_A_TASK)
def test_only_the_task_that_acquired_it(context: LockContext, kind: str) -> None:
    async def main() -> None:
        lock = MAKE[kind](context.asyncio)
        assert await lock.acquire()
        with pytest.raises(WrongThread):
            await asyncio.create_task(lock.release())
        assert lock.is_held
        await lock.release()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "terms"),
    [("lock", {}), ("fair_lock", {}), ("multi_lock", {}), *((kind, {"thread_local": False}) for kind in SHARED)],
)
def test_any_task_where_it_belongs_to_none(context: LockContext, kind: str, terms: dict[str, Any]) -> None:
    async def main() -> None:
        lock = MAKE[kind](context.asyncio, **terms)
        assert await lock.acquire()
        await asyncio.create_task(lock.release())
        assert not lock.is_held

    asyncio.run(main())


@pytest.mark.parametrize("kind", SHARED)
def test_a_block_may_be_left_by_another_task(context: LockContext, kind: str) -> None:
    async def main() -> None:
        lock = MAKE[kind](context.asyncio)
        await lock.__aenter__()
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert not lock.is_held

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["reentrant_lock", "read", "write"])
def test_a_block_of_what_is_counted_may_not(context: LockContext, kind: str) -> None:
    async def main() -> None:
        lock = MAKE[kind](context.asyncio)
        await lock.__aenter__()
        with pytest.raises(WrongThread):
            await asyncio.create_task(lock.__aexit__(None, None, None))
        assert lock.is_held
        await lock.__aexit__(None, None, None)
        assert not lock.is_held

    asyncio.run(main())
