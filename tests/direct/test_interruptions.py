"""Interruptions on the direct path, one at each place: what is acquired next is renewed, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.direct.opened import on_path, opened, path_of
from tests.support.backend import LONG_S, Backend, without_collection
from tests.support.interruptions import Interruption, at_every_place
from tests.support.timers import ask
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext
from wheel_lock.engine.direct import path
from wheel_lock.testing import settle

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
NAME = "order:42"
TIMEOUT_S = 60.0  # so what is left behind is there for long


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    with without_collection():
        yield


@pytest.fixture
def context(real: Backend) -> Iterator[LockContext]:
    """A context on a timer of its own; the scenes open its path."""
    context = real.context(timer=real.timer())
    yield context
    context.close()


def reopened(context: LockContext) -> None:
    context._engine.interrupted = False
    path_of(context)._worth_it = 1
    opened(context)


def idle(context: LockContext) -> None:
    """Wait until the timer's thread has stopped looking, so that the next acquire has to begin that."""
    eventually(lambda: not path_of(context).watched, LONG_S)


def play(context: LockContext, scene: Callable[[Lock, Interruption], object]) -> Iterator[tuple[Lock, str]]:
    locks: list[Lock] = []

    def one(interruption: Interruption) -> None:
        reopened(context)
        locks.append(context.lock(NAME, timeout=TIMEOUT_S))
        scene(locks[-1], interruption)

    for where in at_every_place(one):
        yield locks[-1], where


def test_a_lock_that_is_acquired_after_an_interrupted_acquire_is_looked_at(
    context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path, "LOOK_S", 0.01)

    def scene(lock: Lock, interruption: Interruption) -> None:
        idle(context)
        interruption.begin()
        lock.acquire()
        interruption.end()
        lock.release()

    for _, where in play(context, scene):
        settle(context.timer)
        reopened(context)
        with context.lock("next", timeout=TIMEOUT_S) as lock:
            eventually(lambda: not on_path(lock), LONG_S, where)
            assert lock._lease in context._engine.leases.held, where


def test_an_object_whose_acquire_was_interrupted_acquires_again_at_once(
    context: LockContext, real: Backend, unwatched: None
) -> None:
    def scene(lock: Lock, interruption: Interruption) -> None:
        interruption.begin()
        lock.acquire()
        interruption.end()
        lock.release()

    for lock, where in play(context, scene):
        assert lock.acquire(blocking_timeout=LONG_S), where
        lock.release()
        settle(context.timer)
        assert not real.view.exists(NAME), where


def test_an_interrupted_release_that_the_server_has_refused_is_carried_out(
    context: LockContext, real: Backend, unwatched: None
) -> None:
    def scene(lock: Lock, interruption: Interruption) -> None:
        assert lock.acquire()
        assert on_path(lock)
        real.view.script_flush()
        interruption.begin()
        lock.release()

    for _, where in play(context, scene):
        ask(context.timer)
        settle(context.timer)
        eventually(lambda: not real.view.exists(NAME), LONG_S, where)
        settle(context.timer)
        assert not path_of(context).claim, where


def test_the_path_is_used_again_after_a_release_that_nobody_waited_for(context: LockContext) -> None:
    """A finaliser on the timer's thread may release a lock, but not wait for that."""
    lock = context.lock(NAME, timeout=TIMEOUT_S, thread_local=False)
    assert lock.acquire()
    context.timer.post(lock.release)
    ask(context.timer)
    settle(context.timer)
    path_of(context)._worth_it = 1
    opened(context)
    with context.lock(NAME, timeout=TIMEOUT_S) as again:
        assert on_path(again)
