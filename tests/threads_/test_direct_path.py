"""The direct path: each phase of a hold is ended by one side, and whatever the other does is carried out by the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.threads_.runs import explore, strike_everywhere
from tests.threads_.scheduler import Stage
from tests.threads_.world import Context
from wheel_lock.engine.direct import hold, path
from wheel_lock.observe import ContextStats


def test_the_timers_thread_takes_over_in_any_phase() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        context.timer.post(context.direct.take_over)
        context.begin(context.pair)
        return context.nothing_is_left

    assert explore(scene, hold, path) > 100


def test_two_threads_never_use_the_path_together() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        context.begin(context.pair, partial(context.pair, "other"))
        return context.nothing_is_left

    assert explore(scene, hold, path, threads=3) > 100


def test_an_overdue_caller_that_goes_on_when_the_path_is_anothers() -> None:
    """What it does then concerns its own lock only."""

    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)

        def much_later() -> None:
            for each in list(context.direct.claim.values()):
                context.direct.go_on(each)

        def another() -> None:
            context.timer.post(much_later)
            context.pair("other", may_fail=True)

        context.begin(partial(context.pair, may_fail=True), another)
        return context.nothing_is_left

    assert explore(scene, hold, path, threads=3) > 100


def test_no_counter_that_is_read_falls_or_counts_a_lock_twice() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage)
        seen: list[ContextStats] = []

        def caller() -> None:
            context.pair()
            context.timer.post(context.direct.count)
            context.pair()

        def reader() -> None:
            for _ in range(3):
                seen.append(context.stats())

        context.begin(caller, reader)

        def check() -> None:
            context.nothing_is_left()
            counts = [(0, 0), *((stats.acquired, stats.released) for stats in seen), (2, 2)]
            assert counts == sorted(counts), counts
            assert all(0 <= acquired - released <= 1 for acquired, released in counts), counts

        return check

    assert explore(scene, hold, path, threads=3) > 100


def test_a_caller_that_is_struck_leaves_nothing() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        context = Context(stage, settles=True)
        context.begin(context.pair, partial(stage.sleep, 1.0))

        def check() -> None:
            stats = context.stats()
            assert context.server.keys == {}
            assert not context._engine.leases.held
            assert not context.direct.claim
            assert stats.held == 0
            assert stats.acquired == stats.released

        return check

    assert len(strike_everywhere(scene, 1, hold, path)) > 10
