"""A caller gets its answer whenever that comes: also when it is about to check whether the timer's thread still turns."""

from __future__ import annotations

from collections.abc import Callable

from tests.threads_.runs import explore
from tests.threads_.scheduler import Stage
from tests.threads_.world import Context
from wheel_lock.engine import future
from wheel_lock.runtime import watchdog
from wheel_lock.sync import call
from wheel_lock.sync.call import _CHECK_AFTER_S


def test_an_answer_that_comes_when_its_caller_looks_after_the_thread() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage, direct=False)
        context.server.silent = True

        def let_it_come(now: float) -> None:
            context.server.silent = False

        context.timer.call_at(stage.now + _CHECK_AFTER_S, let_it_come)
        context.begin(context.pair)
        return context.nothing_is_left

    assert explore(scene, call, future, watchdog) > 50
