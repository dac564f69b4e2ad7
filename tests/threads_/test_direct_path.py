"""The direct path: each phase of a hold is ended by one side, and whatever the other does is carried out by the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.threads_.runs import explore, interrupt
from tests.threads_.scheduler import Stage
from tests.threads_.world import NAME, Context
from wheel_lock.engine import state
from wheel_lock.engine.direct import path
from wheel_lock.locks import base, operations
from wheel_lock.observe import ContextStats
from wheel_lock.sync import call, lock

DELAY_S = 0.01


def test_the_timers_thread_takes_over_in_any_phase() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        context.timer.post(context.direct.take_over)
        context.begin(context.pair)
        return context.nothing_is_left

    assert explore(scene, path) > 100


def test_two_threads_never_use_the_path_together() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        context.begin(context.pair, partial(context.pair, "other"))
        return context.nothing_is_left

    assert explore(scene, path, threads=3) > 100


def test_an_overdue_caller_that_goes_on_when_the_path_is_anothers() -> None:
    """What it does then concerns its own lock only."""

    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)

        def much_later() -> None:
            for each in list(context.direct.claim.values()):
                context.direct.go_on(each)

        def another() -> None:
            context.timer.post(much_later)
            context.in_time(partial(context.pair, "other"))

        context.begin(partial(context.in_time, context.pair), another)
        return context.nothing_is_left

    assert explore(scene, path, threads=3) > 100


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
@pytest.mark.parametrize("asks", [1, 2], ids=["acquire", "release"])
def test_a_reply_that_comes_when_its_caller_is_given_up(asks: int, taken: bool) -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        context.connection.delay_s = DELAY_S
        if taken:
            context.server.keys[b"other"] = b"another's"

        def give_up(now: float) -> None:
            for each in list(context.direct.claim.values()):
                context.direct.go_on(each)

        def caller() -> None:
            if taken:
                assert not context.lock("other").acquire(blocking=False)
            else:
                context.pair()

        context.timer.call_at(stage.now + asks * DELAY_S, give_up)
        context.begin(partial(context.in_time, caller))

        def check() -> None:
            context.server.keys.pop(b"other", None)
            context.nothing_is_left()

        return check

    assert explore(scene, path) > 20


def test_no_counter_that_is_read_falls_or_counts_a_lock_twice() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        seen: list[ContextStats] = []

        def look() -> None:
            context.direct.count()
            seen.append(context.stats())

        def caller() -> None:
            context.pair()
            context.timer.post(look)
            context.pair()

        context.timer.post(look)
        context.begin(caller)

        def check() -> None:
            context.nothing_is_left()
            counts = [(0, 0), *((stats.acquired, stats.released) for stats in seen), (2, 2)]
            assert counts == sorted(counts), counts
            assert all(0 <= acquired - released <= 1 for acquired, released in counts), counts

        return check

    assert explore(scene, path) > 100


@pytest.mark.usefixtures("swallowed")
@pytest.mark.parametrize("direct", [True, False], ids=["on the path", "on the ordinary way"])
def test_a_block_that_is_interrupted_leaves_nothing(direct: bool) -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage, settles=True, direct=direct)

        def block() -> None:
            with context.lock(NAME) as held:
                assert held.is_held

        context.begin(block, partial(stage.sleep, 1.0))
        return context.nothing_is_left

    assert interrupt(scene, 1, path, lock, call, operations, base, state) > 15
