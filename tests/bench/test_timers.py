"""The worker of each kind of timers answers, with tiny numbers; its figures are not checked."""

from __future__ import annotations

import pytest

from bench.wheel.worker import IMPLEMENTATIONS
from bench.workers import python
from tests.support import rival_worker


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_timers_are_measured(implementation: str) -> None:
    rival_worker.check_timers(python("bench.wheel.worker", implementation))


@pytest.mark.slow
def test_what_it_cannot_do_is_said() -> None:
    command = python("bench.wheel.worker", "threading")
    rival_worker.check_refusal(command, "-", "wheel", "no more than 1,000 timers", status=1, timers=1_001)
    with rival_worker.started(command, "wheel", "-", timers=1) as worker:
        worker.answer()
        with pytest.raises(RuntimeError, match="no order rest"):
            worker.go("rest")
        worker.end()
    with rival_worker.started(command, "hold", "-") as worker:
        with pytest.raises(RuntimeError, match="no mode hold"):
            worker.answer()
        worker.end(1)
