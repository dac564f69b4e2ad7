"""New histories in each check, those that have failed once, and what makes a failure worth having: it comes again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.simulation.__main__ import kept_seeds, simulate
from tests.simulation.scheduler import Tape
from tests.simulation.shrink import Streams, shrink
from tests.simulation.world import history

_ROOT = Path(__file__).parents[2]
_SECONDS = 60.0


@pytest.mark.slow
def test_new_histories_break_no_rule() -> None:
    first = random.SystemRandom().randrange(1 << 48)
    report = simulate(count(first), _SECONDS)
    print("\n".join(report.lines(_SECONDS)))
    assert report.failed is None, f"make simulate SEED={report.failed} tells what happened"


@pytest.mark.slow
def test_histories_that_have_failed_once_break_no_rule() -> None:
    for seed in kept_seeds():
        assert history(seed).rules.violations == [], f"make simulate SEED={seed} tells what happened"


def test_a_seed_makes_the_same_history_again() -> None:
    assert history(7).digest == history(7).digest


def test_a_tape_makes_the_same_history_again() -> None:
    first = history(8)
    assert history(8, first.tape.recorded).digest == first.digest


@pytest.mark.slow
def test_another_process_makes_the_same_history() -> None:
    program = "from tests.simulation.world import history; print(*[history(seed).digest for seed in (7, 8, 9, 11)])"
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert digests[0] == digests[1]


def test_shrinking_keeps_what_matters() -> None:
    streams = {name: list(Tape(1).stream(name).numbers) for name in ("a", "b")}
    streams["a"] = [5, 0, 7, 9, 3]
    streams["b"] = [1, 2, 3]

    def fails(candidate: Streams) -> Streams | None:
        return candidate if 9 in candidate.get("a", []) else None

    assert shrink(streams, fails, 10.0) == {"a": [9]}
