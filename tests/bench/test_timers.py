"""The worker of each kind of timers answers, with tiny numbers; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.wheel.worker import IMPLEMENTATIONS
from bench.workers import ROOT

TINY = {"timers": 50, "spread_s": 0.05, "ahead_s": 0.05, "idle_s": 0.05}


def answers(implementation: str, orders: list[str], mode: str = "wheel", **options: float) -> tuple[int, list[str]]:
    """Return the worker's exit status and what it has said."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.wheel.worker", implementation, mode, "-", json.dumps({**TINY, **options})],
        input="".join(f"go {order}\n" for order in orders),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=60.0,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_timers_are_measured(implementation: str) -> None:
    status, (up, *said, failed) = answers(implementation, ["schedule", "cancel", "due", "idle", "rest"])
    assert (status, up, failed) == (0, "up", "failed ValueError('no order rest')")
    schedule, cancel, due, idle = (json.loads(line.removeprefix("result ")) for line in said)
    assert schedule.keys() == cancel.keys() == {"ns", "cpu_ns"}
    assert due.keys() == {"cpu_us", "p50_ms", "p99_ms", "max_ms"}
    assert due["p50_ms"] <= due["p99_ms"] <= due["max_ms"]
    assert idle["empty"].keys() == idle["pending"].keys() == {"cpu", "wake_ups"}


@pytest.mark.slow
def test_what_it_cannot_do_is_said() -> None:
    assert answers("wheel", [], mode="hold") == (1, ["failed ValueError('no mode hold')"])
    status, (said,) = answers("threading", [], timers=1_001)
    assert (status, said) == (1, "failed no more than 1,000 timers: a thread for each")
