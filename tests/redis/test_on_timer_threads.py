"""Users' code on the thread of a timer, where finalisers may run: it can give back, and it cannot wait."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from tests.support.backend import Backend, none_left
from tests.support.background import EVENTUALLY_S, Background
from tests.support.timers import Gate, NewTimer, ask, drain
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.engine.direct.path import DirectPath
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import EmbeddedServer, ManualClock, fake_context

pytestmark = pytest.mark.servers("real")

NAMES = ["a", "b"]


@pytest.fixture
def own(backend: Backend, new_timer: NewTimer) -> LockContext:
    """A context with a timer of its own, which a failing test may stop for ever."""
    return backend.context(timer=new_timer())


@pytest.fixture
def elsewhere(new_timer: NewTimer) -> HashedWheelTimer:
    return new_timer()


def on(timer: HashedWheelTimer, call: Callable[[], object]) -> list[object]:
    """Call on the timer's thread, as a finaliser may be; return the result, or the exception."""
    seen: list[object] = []

    def run() -> None:
        try:
            seen.append(call())
        except Exception as error:
            seen.append(error)

    timer.post(run)
    ask(timer)
    return seen


def locked(context: LockContext, name: str = "a") -> Any:
    return taken(context.lock(name, thread_local=False))


def taken(lock: Any) -> Any:
    assert lock.acquire()
    return lock


def of_a_task(context: LockContext) -> Callable[[], object]:
    lock = context.asyncio.lock("a", thread_local=False)
    assert asyncio.run(lock.acquire())
    return lambda: asyncio.run(lock.release())


def of_a_leader(context: LockContext) -> Callable[[], object]:
    leader = context.leader("a").start()
    eventually(lambda: leader.is_leader)
    return partial(leader.close, EVENTUALLY_S)


def close(context: LockContext, lock: Any) -> None:
    """Close a context of which a lock is held until then."""
    context.close(1.0)


def close_in_a_task(context: LockContext, lock: Any) -> None:
    asyncio.run(context.asyncio.close(1.0))


GIVING_BACK: dict[str, Callable[[LockContext], Callable[[], object]]] = {
    "release": lambda context: locked(context).release,
    "end of a block": lambda context: partial(locked(context).__exit__, None, None, None),
    "release of many": lambda context: partial(context.release_many, context.acquire_many(NAMES).values()),
    "release of several": lambda context: taken(context.multi_lock(NAMES, thread_local=False)).release,
    "release of a permit": lambda context: taken(context.semaphore("a", 2, thread_local=False)).release,
    "release of a task's": of_a_task,
    "close of a leader": of_a_leader,
    "close": lambda context: partial(close, context, locked(context)),
    "close by a task": lambda context: partial(close_in_a_task, context, locked(context)),
}


@pytest.mark.parametrize("theirs", [True, False], ids=["own timer", "another timer"])
@pytest.mark.parametrize("give_back", GIVING_BACK)
def test_what_gives_back_is_carried_out_without_waiting(
    own: LockContext, elsewhere: HashedWheelTimer, view: redis.Redis, give_back: str, theirs: bool
) -> None:
    call = GIVING_BACK[give_back](own)
    (outcome,) = on(own.timer if theirs else elsewhere, call)
    assert not isinstance(outcome, Exception)
    eventually(lambda: not own.stats().held and not any(view.exists(name) for name in NAMES))


def test_a_released_lock_can_be_acquired_at_once_through_the_same_object(own: LockContext) -> None:
    lock = locked(own)
    assert on(own.timer, lock.release) == [True]
    assert lock.acquire(blocking_timeout=EVENTUALLY_S)
    lock.release()


def test_a_release_of_what_is_not_held_raises_as_anywhere(own: LockContext) -> None:
    lock = locked(own)
    lock.release()
    (outcome,) = on(own.timer, lock.release)
    assert type(outcome).__name__ == "LockNotHeld"


ASKING: dict[str, Callable[[LockContext, Any], object]] = {
    "acquire": lambda context, lock: context.lock("b").acquire(),
    "acquire without waiting": lambda context, lock: context.lock("b").acquire(blocking=False),
    "block": lambda context, lock: context.lock("b").__enter__(),
    "several": lambda context, lock: context.multi_lock(["b", "c"]).acquire(),
    "many": lambda context, lock: context.acquire_many(["b", "c"]),
    "permit": lambda context, lock: context.semaphore("b", 2).acquire(),
    "reentrant": lambda context, lock: context.reentrant_lock("b").acquire(),
    "extend": lambda context, lock: lock.extend(1.0),
    "locked": lambda context, lock: lock.locked(),
    "owned": lambda context, lock: lock.owned(),
    "holder": lambda context, lock: lock.holder(),
    "export": lambda context, lock: lock.export(),
    "force": lambda context, lock: context.force_release("a"),
    "task": lambda context, lock: asyncio.run(context.asyncio.lock("b").acquire()),
}


@pytest.mark.parametrize("what", ASKING)
@pytest.mark.parametrize("theirs", [True, False], ids=["own timer", "another timer"])
def test_what_needs_an_answer_raises_at_once_and_leaves_nothing(
    own: LockContext, elsewhere: HashedWheelTimer, view: redis.Redis, what: str, theirs: bool
) -> None:
    lock = locked(own)
    (outcome,) = on(own.timer if theirs else elsewhere, lambda: ASKING[what](own, lock))
    assert isinstance(outcome, RuntimeError)
    assert "must not wait" in str(outcome)
    assert own.stats().held == 1
    assert own.stats().waiting == 0
    assert lock.is_held
    assert lock.release()
    assert not view.exists("a", "b", "c")


def test_a_timer_is_stopped_on_the_thread_of_another_without_waiting(
    new_timer: NewTimer, elsewhere: HashedWheelTimer
) -> None:
    timer = new_timer()
    with Gate(timer.post):
        stopping = Background(lambda: on(elsewhere, timer.stop))
        assert stopping.result(4.0) == [set()]  # less than stop() waits


def test_counters_are_read_without_waiting(own: LockContext) -> None:
    locked(own).release()
    path = own._engine.direct
    assert isinstance(path, DirectPath)
    before, done = own.stats(), path.done.copy()
    on(own.timer, path.count)
    path.done.update(done)  # as in the middle of the count, which a finaliser has interrupted
    assert on(own.timer, own.stats) == [before]
    on(own.timer, path.count)
    assert (own.stats(), path.done) == (before, {})


# Finalisers, as they come about


@pytest.mark.usefixtures("no_collection")
def test_a_generator_that_is_collected_on_the_thread_gives_its_lock_back(
    own: LockContext, backend: Backend, view: redis.Redis
) -> None:
    ran_on: list[str] = []

    def rows() -> Iterator[int]:
        with own.lock("a", thread_local=False):
            try:
                yield 1
            finally:
                ran_on.append(threading.current_thread().name)

    class Holder:
        def __init__(self) -> None:
            self.cycle, self.rows = self, rows()
            next(self.rows)

    Holder()
    assert own.stats().held == 1
    own.timer.post(gc.collect)
    ask(own.timer)
    assert ran_on == [own.timer.name]
    eventually(lambda: none_left(backend, own))


# Fake contexts


def test_a_fake_context_is_closed_on_its_timers_thread_without_waiting(new_timer: NewTimer) -> None:
    context = fake_context(clock=ManualClock())
    locked(context)
    assert on(context.timer, context.close) == [None]
    eventually(lambda: context.closed and context.timer.stopped and not context.server._thread.is_alive())


def test_an_embedded_server_is_closed_on_its_own_thread_without_waiting() -> None:
    server = EmbeddedServer()
    called: list[None] = []
    server._server.service_actions = lambda: called or called.append(server.close())  # type: ignore[assignment, method-assign]
    eventually(lambda: not server._thread.is_alive())
    drain()
