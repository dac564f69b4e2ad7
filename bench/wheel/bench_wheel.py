"""Operation x implementation x size under pytest-benchmark; ``ns_per_timer`` is in the extra info of each result."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.wheel.schedulers import ADVANCE, CANCEL, SCHEDULE, SCHEDULERS, Scheduler, WheelScheduler
from bench.wheel.workload import SIZES, SPREAD, advance_and_rearm, deadlines

ROUNDS = {1_000: 20, 100_000: 5, 1_000_000: 3}
SLOW = 1_000_000  # timers: one round of each rival at that size, or they take longer than everything else together


@pytest.fixture(params=SIZES, ids="{:_}".format)
def size(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


@pytest.fixture(params=SCHEDULERS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest, size: int) -> type[Scheduler]:
    kind: type[Scheduler] = request.param
    if size > kind.most:
        pytest.skip(kind.why_not_more)
    return kind


@pytest.fixture
def made() -> Iterator[list[Scheduler]]:
    """The schedulers that a benchmark has made; all but the last are closed by it, the last one here."""
    made: list[Scheduler] = []
    yield made
    for scheduler in made:
        scheduler.close()


def renew(made: list[Scheduler], kind: type[Scheduler], size: int) -> Scheduler:
    while made:
        made.pop().close()
    made.append(kind(size))
    return made[0]


def record(
    benchmark: BenchmarkFixture,
    kind: type[Scheduler],
    size: int,
    operation: str,
    run: Callable[..., None],
    **how: object,
) -> None:
    """Measure ``run``, which goes through all timers once, and note the time per timer."""
    benchmark.group = f"{operation}, {size:,} timers"
    benchmark.extra_info.update(implementation=kind.name, operation=operation, size=size)
    pedantic: Callable[..., object] = benchmark.pedantic
    pedantic(run, rounds=1 if size >= SLOW and kind is not WheelScheduler else ROUNDS[size], **how)
    if benchmark.stats is not None:
        benchmark.extra_info["ns_per_timer"] = round(benchmark.stats.stats.median / size * 1e9, 1)


def test_schedule(benchmark: BenchmarkFixture, made: list[Scheduler], kind: type[Scheduler], size: int) -> None:
    ticks = deadlines(size)

    def prepare() -> tuple[tuple[Scheduler], dict[str, object]]:
        return (renew(made, kind, size),), {}

    record(benchmark, kind, size, SCHEDULE, lambda scheduler: scheduler.schedule(ticks), setup=prepare)


def test_cancel(benchmark: BenchmarkFixture, made: list[Scheduler], kind: type[Scheduler], size: int) -> None:
    ticks = deadlines(size)

    def prepare() -> tuple[tuple[Scheduler], dict[str, object]]:
        scheduler = renew(made, kind, size)
        scheduler.schedule(ticks)
        scheduler.shuffle()
        return (scheduler,), {}

    record(benchmark, kind, size, CANCEL, lambda scheduler: scheduler.cancel(), setup=prepare)


def test_advance_and_rearm(
    benchmark: BenchmarkFixture, made: list[Scheduler], kind: type[Scheduler], size: int
) -> None:
    if ADVANCE not in kind.operations:
        pytest.skip("it waits for real time")
    scheduler = renew(made, kind, size)
    scheduler.schedule(deadlines(size))
    rotations = iter(range(0, 1000 * SPREAD, SPREAD))

    def one_rotation() -> None:
        advance_and_rearm(scheduler, next(rotations), SPREAD, size)

    record(benchmark, kind, size, ADVANCE, one_rotation, warmup_rounds=0 if size >= SLOW else 1)
