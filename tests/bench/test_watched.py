"""The benchmark of watched locks runs, with tiny numbers; of what it finds only the order is looked at."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.workers import ROOT
from tests.support.redis_server import require_tracking


@pytest.mark.slow
def test_watched_locks_are_measured() -> None:
    require_tracking()
    tiny = ["--locks", "200", "--deleted", "20", "--timeout", "4", "--seconds", "0.3"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.watched", *tiny], capture_output=True, text=True, cwd=ROOT, timeout=120.0
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| False |", "| True |"))]
    assert len(rows) == 2
