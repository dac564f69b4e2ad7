"""The direct path: each phase of a hold is ended by one side, and whatever the other does is carried out by the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.threads_.runs import explore
from tests.threads_.scheduler import Stage
from tests.threads_.world import Context
from wheel_lock.engine.direct import hold, path


def test_the_timers_thread_takes_over_in_any_phase() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        context.timer.post(context.direct.take_over)
        context.begin(context.pair)
        return context.nothing_is_left

    print(explore(scene, hold, path))


def test_two_threads_never_use_the_path_together() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        context.begin(context.pair, partial(context.pair, "other"))
        return context.nothing_is_left

    print(explore(scene, hold, path, threads=3))
