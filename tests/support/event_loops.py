"""What these tests share: event loops of either kind, and ways to wait in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest
import redis

from tests.support.backend import LONG_S
from wheel_lock import LockContext

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Run(Protocol):
    """Runs a coroutine in an event loop of its own, as asyncio.run() does."""

    def __call__(self, main: Coroutine[Any, Any, T]) -> T: ...


def loop_factory(kind: str) -> NewLoop:
    """What makes event loops: asyncio's own, or uvloop's where that is installed."""
    if kind == "asyncio":
        return asyncio.new_event_loop
    new: NewLoop = pytest.importorskip(kind).new_event_loop
    return new


def watched_run(new_loop: NewLoop) -> Run:
    """What runs a coroutine in such a loop. A task that is left over, or an error that no task retrieves, is a failure."""

    def run_it(main: Coroutine[Any, Any, T]) -> T:
        complaints: list[dict[str, Any]] = []

        async def watched() -> T:
            asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
            value = await main
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return value

        with asyncio.Runner(loop_factory=new_loop) as runner:
            value = runner.run(watched())
        assert complaints == []
        return value

    return run_it


async def until(predicate: Callable[[], T], timeout_s: float = LONG_S, message: str = "") -> T:
    """Let other tasks run until `predicate` returns something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while True:
        last = time.monotonic() >= deadline
        if value := predicate():
            return value
        assert not last, f"not within {timeout_s} s: {message} (last seen: {value!r})"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def raising(error: type[E], match: str | None = None) -> AsyncIterator[pytest.ExceptionInfo[E]]:
    """pytest.raises() for an `async with` statement."""
    with pytest.raises(error, match=match) as caught:
        yield caught


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, or raise what it raises, before it waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise AssertionError("it has waited")


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Return when these tasks have ended, however they have."""
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*tasks, return_exceptions=True)


async def nothing_is_left(context: LockContext, view: redis.Redis, names: Iterable[str]) -> None:
    """Nothing is held or awaited, on either side, and every name can be acquired at once."""
    await until(lambda: context.stats().waiting == 0 and context.stats().held == 0, message=f"{context.stats()}")
    for name in names:
        await until(lambda name=name: not view.exists(name), message=f"{name} is free")  # type: ignore[misc]
        lock = context.asyncio.lock(name, blocking=False)
        assert await lock.acquire(), f"{name} cannot be acquired"
        await lock.release()
    assert context.held() == []
    assert context._engine.leases.acquiring == 0
