"""Losses are reported on the event loop, where the callback's author expects them, once, whatever the callback does."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.aio.lock_loser import LockLoser
from tests.support.event_loops import NewLoop, until
from wheel_lock import LossReason, LostEvent

pytestmark = pytest.mark.loops("asyncio", "uvloop")


class Recorder:
    """An `on_lost` callback that records its events, and where it is called."""

    def __init__(self) -> None:
        self.events: list[LostEvent] = []
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, event: LostEvent) -> None:
        self.events.append(event)
        self.loops.append(asyncio.get_running_loop())
        self.threads.append(threading.current_thread())


async def test_it_is_called_on_the_event_loop_with_the_event(loser: LockLoser) -> None:
    recorder = Recorder()
    lock = loser.context.asyncio.lock("order:42", 30.0, fencing=True, on_lost=recorder)
    await lock.acquire()
    assert lock.fence is not None
    loser.delete()
    assert recorder.events == []  # this task has not waited since, so nothing else has run on the loop
    await until(lambda: recorder.events)
    (event,) = recorder.events
    assert (event.name, event.reason, event.fence) == ("order:42", LossReason.KEY_GONE, lock.fence)
    assert recorder.loops == [asyncio.get_running_loop()]
    assert recorder.threads == [threading.current_thread()]
    await asyncio.sleep(0.02)
    assert len(recorder.events) == 1


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("bulk", [True, False])
def test_an_error_in_it_is_the_event_loops_affair(
    new_loop: NewLoop, loser: LockLoser, bulk: bool, awaited: bool
) -> None:
    complaints: list[object] = []

    def raising(event: LostEvent) -> None:
        raise ZeroDivisionError(event.name)

    async def failing_task(event: LostEvent) -> None:
        raising(event)

    failing = failing_task if awaited else raising

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: complaints.append(error["exception"]))
        if bulk:
            locks = list((await loser.context.asyncio.acquire_many(["a", "b"], 30.0, on_lost=failing)).values())
        else:
            locks = [loser.context.asyncio.lock(name, 30.0, on_lost=failing) for name in ("a", "b")]
            for lock in locks:
                assert lock is not None
                await lock.acquire()
        loser.delete("a", "b")
        await until(lambda: len(complaints) == 2)
        assert [lock.lost for lock in locks if lock is not None] == [LossReason.KEY_GONE] * 2
        other = loser.context.asyncio.lock("c")
        await other.acquire()
        await other.release()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert sorted(str(complaint) for complaint in complaints) == ["a", "b"]
    assert {type(complaint) for complaint in complaints} == {ZeroDivisionError}


class Awaited(Recorder):
    """One that is an object with a coroutine function."""

    async def __call__(self, event: LostEvent) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().__call__(event)


@pytest.mark.parametrize("form", ["coroutine function", "partial", "object", "lambda"])
async def test_what_it_returns_is_awaited_in_a_task_of_the_event_loop(loser: LockLoser, form: str) -> None:
    recorder = Awaited()

    async def on_lost(event: LostEvent) -> None:
        await recorder(event)

    async def second(first: str, event: LostEvent) -> None:
        await recorder(event)

    forms: dict[str, Callable[[LostEvent], object]] = {
        "coroutine function": on_lost,
        "partial": partial(second, "first"),
        "object": recorder,
        "lambda": lambda event: recorder(event),
    }
    await loser.context.asyncio.lock("order:42", 30.0, on_lost=forms[form], thread_local=False).acquire()
    loser.delete()
    gc.collect()  # nothing but the library refers to the task
    await until(lambda: recorder.events)
    assert recorder.loops == [asyncio.get_running_loop()]
