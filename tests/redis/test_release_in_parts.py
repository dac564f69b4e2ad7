"""A bulk release of several parts, whatever comes between them: all of it is released, and nobody is told of a loss.

Each part is about one lock. The parts themselves are tested in tests/engine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, Losses, without_collection
from tests.support.background import Background, in_a_fork
from tests.support.interruptions import Interruption, at_every_place
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.testing import settle

pytestmark = [pytest.mark.servers("real"), pytest.mark.settings(own_timer=True)]

NAMES = [f"shard:{number}" for number in range(12)]


@pytest.fixture(autouse=True)
def parts_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_operations, "LEASES_A_TURN", 1)


def hold(context: LockContext, losses: Losses, **terms: Any) -> list[Any]:
    return list(context.acquire_many(NAMES, timeout=60.0, on_lost=losses, **terms).values())


def is_released(backend: Backend, context: LockContext, losses: Losses) -> None:
    eventually(lambda: not backend.view.keys(), LONG_S)
    settle(context.timer)
    assert context.stats().held == 0
    assert context.stats().released == len(NAMES)
    assert losses.all_told() == []


@contextmanager
def begun(context: LockContext, calls: int) -> Iterator[None]:
    """Keep the timer's thread until so many messages wait, and what is in the block has been done, too."""
    gate = threading.Event()
    context.timer.post(lambda: gate.wait(LONG_S))
    try:
        yield
        eventually(lambda: len(context.timer._inbox) >= calls, LONG_S)
    finally:
        gate.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_anywhere_leaves_nothing_held_and_nothing_lost(backend: Backend, context: LockContext) -> None:
    losses = Losses()

    def release(interruption: Interruption) -> None:
        locks = hold(context, losses, thread_local=True)
        interruption.begin()
        try:
            context.release_many(locks)
        finally:
            interruption.end()

    with without_collection():
        for where in at_every_place(release):
            settle(context.timer)
            eventually(lambda: not backend.view.keys(), LONG_S, f"nothing is left, interrupted at {where}")
            assert context.stats().held == 0
    assert losses.all_told() == []


@pytest.mark.parametrize("release_on_close", [True, False])
def test_a_close_behind_it(backend: Backend, release_on_close: bool) -> None:
    timer = backend.timer()
    context = backend.context(timer=timer, release_on_close=release_on_close)
    losses = Losses()
    locks = hold(context, losses)
    with begun(context, 2):
        releasing = Background(lambda: context.release_many(locks))
        eventually(lambda: len(timer._inbox) >= 1, LONG_S)
        closing = Background(context.close)
    releasing.result()
    closing.result()
    assert backend.view.keys() == []
    assert losses.all_told() == []
    assert context.stats().released == len(NAMES)


def test_several_threads_about_locks_that_overlap(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    locks = hold(context, losses)
    some = [locks, locks[::-1], locks[3:9], locks[::2]]
    with begun(context, len(some)):
        releasing = [Background(lambda these=these: context.release_many(these)) for these in some]  # type: ignore[misc]
    for each in releasing:
        each.result()
    is_released(backend, context, losses)


async def test_a_task_releases_all_parts(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    made = await context.asyncio.acquire_many(NAMES, 60.0, on_lost=losses)
    await context.asyncio.release_many(made.values())
    is_released(backend, context, losses)


@pytest.mark.parametrize("thread_local", [True, False])
def test_an_event_loop_that_is_closed_meanwhile(backend: Backend, context: LockContext, thread_local: bool) -> None:
    losses = Losses()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of the task that never ends

    async def acquire() -> list[Any]:
        made = await context.asyncio.acquire_many(NAMES, 60.0, on_lost=losses, thread_local=thread_local)
        return list(made.values())

    locks = loop.run_until_complete(acquire())
    with begun(context, 1):
        task = loop.create_task(context.asyncio.release_many(locks))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    is_released(backend, context, losses)
    assert not task.done()


def in_a_callback(context: LockContext, release: Callable[[], None]) -> None:
    context.timer.new_timeout(lambda timeout: release(), 0.0)


def in_a_finaliser(context: LockContext, release: Callable[[], None]) -> None:
    class Holder:
        def __del__(self) -> None:
            release()

    Holder()


@pytest.mark.parametrize("where", [in_a_callback, in_a_finaliser])
def test_a_caller_on_the_notifiers_thread_or_in_a_finaliser(
    backend: Backend, context: LockContext, where: Callable[[LockContext, Callable[[], None]], None]
) -> None:
    losses = Losses()
    locks = hold(context, losses)
    where(context, lambda: context.release_many(locks))
    is_released(backend, context, losses)


def test_a_fork_meanwhile(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    locks = hold(context, losses)

    def nothing_is_held_here() -> None:
        assert not any(lock.is_held for lock in locks)
        assert context.stats().held == 0
        with context.lock("the child's"):
            pass

    with begun(context, 1):
        releasing = Background(lambda: context.release_many(locks))
        eventually(lambda: len(context.timer._inbox) >= 1, LONG_S)
        in_a_fork(nothing_is_held_here)
    releasing.result()
    is_released(backend, context, losses)
