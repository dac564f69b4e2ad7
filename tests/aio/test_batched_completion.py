"""Results that arrive in one turn of the timer's thread cost each event loop one wake-up, however many they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.support.event_loops import NewLoop
from tests.support.logged import Log
from tests.support.timers import messages
from wheel_lock.aio.call import AsyncFuture, run
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock

pytestmark = pytest.mark.loops("asyncio", "uvloop")

MANY = 50


class Answering:
    """What a future needs of an engine; the test turns its timer."""

    deaths = 0
    exiting = interrupted = False

    def __init__(self) -> None:
        self.timer = HashedWheelTimer(clock=ManualClock(), threaded=False)

    def post_if_open(self, work: Callable[[], object]) -> None:
        self.timer.post(work)


class Counted:
    """An event loop, and how often another thread has woken it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.calls = 0

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        handle = self._loop.call_soon_threadsafe(callback)
        self.calls += 1
        return handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Waiting:
    """Tasks of one event loop, each of which waits for a number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Answering) -> None:
        self.loop = loop
        self.futures: list[AsyncFuture[int]] = []
        self.tasks = [loop.create_task(self._wait(engine)) for _ in range(MANY)]
        loop.run_until_complete(asyncio.sleep(0))
        (self.bridge,) = {future._bridge for future in self.futures}
        self.bridge.loop = self.counted = Counted(loop)  # type: ignore[assignment]

    async def _wait(self, engine: Any) -> int:
        return await run(self._steps(engine))

    def _steps(self, engine: Any) -> Generator[Any, None, int]:
        future: AsyncFuture[int] = AsyncFuture(engine)
        self.futures.append(future)
        yield from future.wait()
        return future.result()

    def complete(self) -> None:
        for number, future in enumerate(self.futures):
            future.set_result(number)

    @property
    def results(self) -> list[int]:
        return self.loop.run_until_complete(asyncio.gather(*self.tasks))

    def close_at_once(self) -> None:
        """Close the loop while its tasks wait."""
        self.loop.close()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def close(self) -> None:
        if not self.loop.is_closed():
            for task in self.tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*self.tasks, return_exceptions=True))
            self.loop.close()


@pytest.fixture
def engine() -> Answering:
    return Answering()


@pytest.fixture
def two(new_loop: NewLoop, engine: Answering) -> Iterator[list[Waiting]]:
    both = [Waiting(new_loop(), engine) for _ in range(2)]
    yield both
    for waiting in both:
        waiting.close()


def test_each_loop_is_woken_once_a_turn(engine: Answering, two: list[Waiting]) -> None:
    for waiting in two:
        engine.timer.post(waiting.complete)
    engine.timer.turn()
    assert [waiting.counted.calls for waiting in two] == [1, 1]
    assert [waiting.results for waiting in two] == [list(range(MANY))] * 2


def test_a_result_that_got_lost_on_its_way_is_found(two: list[Waiting]) -> None:
    """As when the timer's thread is killed between a result and the call of the event loop."""
    waiting, _ = two
    for number, future in enumerate(waiting.futures):
        future._value, future.done = number, True
    waiting.loop.call_soon(waiting.bridge._check_expected)
    assert waiting.results == list(range(MANY))


def test_a_closed_loop_costs_the_other_nothing_and_each_of_its_results_is_given_up(
    engine: Answering, two: list[Waiting], log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    closed, other = two
    given_up: list[int] = []

    def give_up(number: int) -> Callable[[], None]:
        def do() -> None:
            given_up.append(number)
            assert number != 3, "one that fails"

        return do

    for number, future in enumerate(closed.futures):
        future.if_undeliverable(give_up(number))
    closed.close_at_once()
    for waiting in two:
        engine.timer.post(waiting.complete)
    for _ in range(MANY):  # their engine gives them up in the next turn, on a busy machine in several
        engine.timer.turn()
    assert given_up == list(range(MANY))
    assert len(log.said("an event loop was closed")) == MANY
    assert len(messages(caplog, logging.ERROR)) == 1
    assert other.results == list(range(MANY))


def test_a_loop_that_is_closed_after_it_was_woken_gives_up_what_it_has_not_fetched(
    engine: Answering, two: list[Waiting], log: Log
) -> None:
    closed, _ = two
    closed.futures[0].set_result(0)
    closed.close_at_once()
    closed.futures[1].set_result(1)
    assert len(log.said("an event loop was closed")) == 2


def test_a_call_that_was_announced_and_never_made_is_announced_anew(two: list[Waiting]) -> None:
    """As when the timer's thread is killed between the two."""
    waiting, _ = two
    waiting.bridge.announced = True
    first, *others = waiting.futures
    first.set_result(0)
    assert waiting.counted.calls == 0
    waiting.loop.call_soon(waiting.bridge._check_expected)
    waiting.loop.run_until_complete(asyncio.wait([waiting.tasks[0]]))
    for number, future in enumerate(others, 1):
        future.set_result(number)
    assert waiting.counted.calls > 0
    assert waiting.results == list(range(MANY))
