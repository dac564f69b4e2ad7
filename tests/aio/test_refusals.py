"""What is wrong is said before anything is awaited, and before anything is asked of a server; trio is, too."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio

from tests.support.backend import LONG_S, Backend
from tests.support.event_loops import at_once
from tests.support.lock_types import KINDS, make, traces
from tests.support.ports import candidate_port
from wheel_lock import ContextClosed, LockContext, LockLost, LockNotHeld, LossReason
from wheel_lock.asyncio import Lock

pytestmark = pytest.mark.loops("asyncio", "uvloop")


@pytest.fixture
def unheard() -> LockContext:
    """A context whose server cannot be reached: whoever asks it waits."""
    return LockContext.from_url(f"redis://127.0.0.1:{candidate_port()}", response_timeout=LONG_S)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda lock: lock.acquire(blocking_timeout=-1.0),
        lambda lock: lock.acquire(token=""),
        lambda lock: lock.acquire(token="\ud800"),
        lambda lock: lock.extend(0.0),
        lambda lock: lock.extend(float("inf")),
    ],
)
async def test_wrong_arguments_are_refused(
    unheard: LockContext, wrong: Callable[[Lock], Coroutine[Any, Any, object]]
) -> None:
    with pytest.raises(ValueError, match="must"):
        at_once(wrong(unheard.asyncio.lock("order:42")))
    assert unheard.stats().connects == 0


async def test_what_is_not_held_is_refused_before_the_first_await(unheard: LockContext) -> None:
    lock = unheard.asyncio.lock("order:42")
    for call in (lock.release(), lock.extend(1.0), lock.reacquire(), lock.export()):
        with pytest.raises(LockNotHeld):
            at_once(call)
    with pytest.raises(LockNotHeld):
        at_once(unheard.asyncio.release_many([None, lock]))
    assert at_once(lock.owned()) is False


async def test_a_closed_context_is_refused_before_the_first_await(context: LockContext) -> None:
    held = context.asyncio.lock("held")
    await held.acquire()
    await context.asyncio.close()
    assert context.asyncio.closed
    assert held.lost is LossReason.CONTEXT_CLOSED
    at_once(context.asyncio.close())
    lock = context.asyncio.lock("order:42")
    for call in (lock.acquire(), lock.locked(), context.asyncio.acquire_many(["a"])):
        with pytest.raises(ContextClosed):
            at_once(call)
    with pytest.raises(LockLost):
        at_once(held.release())


def test_outside_of_an_event_loop_nothing_is_asked(unheard: LockContext) -> None:
    acquiring = unheard.asyncio.lock("order:42").acquire()
    with pytest.raises(RuntimeError, match="no running event loop"):
        acquiring.send(None)
    assert unheard.stats().connects == 0


# Under trio, in words that say what to do


CALLS: dict[str, Callable[[Any], Any]] = {
    **{kind: lambda context, kind=kind: make(context, kind).acquire() for kind in KINDS},  # type: ignore[misc]
    "cancel_on_lost": lambda context: context.lock("order:42", cancel_on_lost=True, thread_local=False).acquire(),
    "on_lost": lambda context: context.lock("order:42", on_lost=print).acquire(),
    "acquire_many": lambda context: context.acquire_many(["order:42"]),
    "locked": lambda context: context.lock("order:42").locked(),
    "close": lambda context: context.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_lock_for_tasks_of_asyncio_says_what_to_use_instead(real: Backend, context: LockContext, call: str) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"a task of trio: .* await trio\.to_thread\.run_sync"):
            await CALLS[call](context.asyncio)

    trio.run(main)
    assert traces(real) == []
    assert not context.closed


def test_a_decorated_coroutine_function_is_refused_as_well(context: LockContext) -> None:
    @context.locked("order:42")
    async def work() -> None:
        raise AssertionError

    with pytest.raises(RuntimeError, match="a task of trio"):
        trio.run(work)
