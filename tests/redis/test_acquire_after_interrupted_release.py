"""A lock that is acquired again while its release, by a caller who was interrupted, is still to be begun."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.backend import LONG_S, interrupted
from tests.support.background import Background
from tests.support.lock_types import make
from tests.support.timers import Gate
from tests.support.waiting import eventually
from wheel_lock import LockContext

pytestmark = pytest.mark.servers("real")

# Each kind of lock, and an exclusive one that is anybody's.
MAKE: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("exclusive", "fenced exclusive", "fair", "reentrant", "semaphore", "multi")},
    "anybody's": ("exclusive", {"thread_local": False}),
}


def asked(context: LockContext) -> int:
    """How much the thread that keeps the locks has been asked for since it was held up."""
    return len(context.timer._inbox)


@contextmanager
def letting_go_on(context: LockContext, thread: Gate) -> Iterator[None]:
    """While the block lasts the thread goes on as soon as it is asked for more."""
    before = asked(context)
    opener = Background(lambda: (eventually(lambda: asked(context) > before, LONG_S), thread.open()))
    yield
    opener.result()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", MAKE)
async def test_a_task_that_was_cancelled_may_acquire_it_again(context: LockContext, kind: str, blocking: bool) -> None:
    plain_kind, terms = MAKE[kind]
    lock = make(context.asyncio, plain_kind, timeout=60.0, **terms)
    assert await lock.acquire()
    with Gate(context.timer.post) as thread:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await lock.release()
        assert asked(context)
        asyncio.get_running_loop().call_soon(thread.open)  # when this task waits
        assert await lock.acquire(blocking=blocking)
    assert lock.is_held
    await lock.release()


def test_what_was_interrupted_in_bulk_may_be_acquired_again(context: LockContext) -> None:
    locks = [context.lock(name, timeout=60.0, thread_local=False) for name in "abc"]
    assert all(lock.acquire() for lock in locks)
    with Gate(context.timer.post) as thread:
        with interrupted(lambda: asked(context)):
            context.release_many(locks)
        with letting_go_on(context, thread):
            assert locks[0].acquire(blocking=False)
    assert locks[1].acquire(blocking=False)
    context.release_many(locks[:2])
