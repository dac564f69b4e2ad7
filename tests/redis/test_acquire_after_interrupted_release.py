"""A lock that is acquired again while its release, by a caller who was interrupted, is still to be begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from tests.support.backend import LONG_S, interrupted
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import LockContext

pytestmark = pytest.mark.servers("real")

MAKE: dict[str, Callable[[Any], Any]] = {
    "exclusive": lambda face: face.lock("a", timeout=60.0),
    "anybody's": lambda face: face.lock("a", timeout=60.0, thread_local=False),
    "fenced": lambda face: face.lock("a", timeout=60.0, fencing=True),
    "fair": lambda face: face.fair_lock("a", timeout=60.0),
    "reentrant": lambda face: face.reentrant_lock("a", timeout=60.0),
    "permit": lambda face: face.semaphore("a", 1, timeout=60.0),
    "multi": lambda face: face.multi_lock(["a", "b"], timeout=60.0),
}


class HeldUp:
    """The thread that keeps the locks, busy with something else until ``go_on`` is set, or to the end of the block."""

    def __init__(self, context: LockContext) -> None:
        self._context = context
        self._reached = threading.Event()
        self.go_on = threading.Event()

    def __enter__(self) -> Self:
        self._context.timer.post(lambda: (self._reached.set(), self.go_on.wait(2 * LONG_S)))
        assert self._reached.wait(LONG_S)
        return self

    def __exit__(self, *exception: object) -> None:
        self.go_on.set()

    @property
    def asked(self) -> int:
        """How much it has been asked for meanwhile."""
        return len(self._context.timer._inbox)


@contextmanager
def letting_go_on(thread: HeldUp) -> Iterator[None]:
    """While the block lasts the thread goes on as soon as it is asked for more."""
    asked = thread.asked
    opener = Background(lambda: (eventually(lambda: thread.asked > asked, LONG_S), thread.go_on.set()))
    yield
    opener.result()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", MAKE)
def test_a_thread_that_was_interrupted_may_acquire_it_again(context: LockContext, kind: str, blocking: bool) -> None:
    lock = MAKE[kind](context)
    assert lock.acquire()
    with HeldUp(context) as thread:
        with interrupted(lambda: thread.asked):
            lock.release()
        with letting_go_on(thread):
            assert lock.acquire(blocking=blocking)
    assert lock.is_held
    assert context.stats().held == (2 if kind == "multi" else 1)
    lock.release()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", MAKE)
async def test_a_task_that_was_cancelled_may_acquire_it_again(context: LockContext, kind: str, blocking: bool) -> None:
    lock = MAKE[kind](context.asyncio)
    assert await lock.acquire()
    with HeldUp(context) as thread:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await lock.release()
        assert thread.asked
        asyncio.get_running_loop().call_soon(thread.go_on.set)  # when this task waits
        assert await lock.acquire(blocking=blocking)
    assert lock.is_held
    await lock.release()


def test_what_was_interrupted_in_bulk_may_be_acquired_again(context: LockContext) -> None:
    locks = [context.lock(name, timeout=60.0, thread_local=False) for name in "abc"]
    assert all(lock.acquire() for lock in locks)
    with HeldUp(context) as thread:
        with interrupted(lambda: thread.asked):
            context.release_many(locks)
        with letting_go_on(thread):
            assert locks[0].acquire(blocking=False)
    assert locks[1].acquire(blocking=False)
    context.release_many(locks[:2])
