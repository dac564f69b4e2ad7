"""APScheduler: of several processes' schedulers one runs the jobs; another takes over when it stops, or loses the lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.backend import Backend
from tests.support.waiting import eventually

TICK_S = 0.05


class Process:
    """What one process has: a context, a scheduler, and a job that notes each run."""

    def __init__(self, real: Backend) -> None:
        from apscheduler.schedulers.background import BackgroundScheduler

        from docs.examples.frameworks.apscheduler_jobs import OneScheduler

        self.runs = 0
        self.scheduler = BackgroundScheduler(timezone="UTC")
        self.scheduler.add_job(self._run, "interval", seconds=TICK_S, misfire_grace_time=60, coalesce=True)
        self.one = OneScheduler(real.context(), self.scheduler, timeout=3.0)
        self.one.start()

    def _run(self) -> None:
        self.runs += 1


@pytest.fixture
def processes(real: Backend) -> Iterator[tuple[Process, Process]]:
    with ExitStack() as stack:
        first = Process(real)
        stack.callback(first.one.stop)
        eventually(lambda: first.runs >= 2)
        second = Process(real)
        stack.callback(second.one.stop)
        yield first, second


def test_the_jobs_run_in_one_process_until_it_stops(real: Backend, processes: tuple[Process, Process]) -> None:
    first, second = processes
    runs = first.runs
    eventually(lambda: first.runs >= runs + 3)
    assert second.runs == 0
    first.one.stop()
    runs = first.runs
    eventually(lambda: second.runs >= 2)
    assert first.runs == runs
    assert not first.scheduler.running


def test_a_lost_lock_pauses_the_scheduler(real: Backend, processes: tuple[Process, Process]) -> None:
    first, second = processes
    real.view.set("scheduler", "another", px=60_000)
    eventually(lambda: first.scheduler.state == 2)  # STATE_PAUSED
    real.view.delete("scheduler")
    before = first.runs, second.runs
    eventually(lambda: (first.runs, second.runs) > before or second.runs > before[1])
