"""Histories of new seeds, those that have failed once, and what makes a failure worth having: it comes again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.scheduler import Tape
from tests.simulation.shrink import Streams, shrink
from tests.support.draws import dice

_ROOT = Path(__file__).parents[2]
_SEEDS = (5000, 5005, 5008, 5011, 5020, 5033, 5038)
_RUNS_SIMULATION = "import greenlet, hiredis, lupa, redis, sortedcontainers, sys; print(sys.version_info[:2])"


def _printed(text: str, program: str = sys.executable, **variables: str) -> str:
    """Return what a program prints: a history has a process to itself, in which no threads of other tests are left."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), **variables}
    return subprocess.run(
        [program, "-c", text], cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_new_histories_break_no_rule(record_property: Callable[[str, object], None]) -> None:
    """Their seeds are drawn, and shown in the summary. One that fails is shown as a story."""
    first = str(dice().randrange(1 << 48))
    limits = ["--seconds", "60", "--jobs", "2"]  # by the clock: it has to end on a machine that does much else
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--from", first, *limits],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    record_property("summary", "simulation: " + ", ".join(done.stdout.splitlines()[1:3]))


@pytest.mark.slow
def test_histories_that_have_failed_once_break_no_rule() -> None:
    program = """
from tests.simulation.__main__ import kept_seeds, simulate
report = simulate(kept_seeds(), float("inf"))
print(*report.lines(report.cpu_s), "failed: " + str(report.failed), sep=chr(10))
"""
    printed = _printed(program)
    assert printed.endswith("failed: None\n"), f"{printed}make simulate SEED=... shows what happened"


@pytest.mark.parametrize("recorded", ["None", "first.tape.recorded"])
def test_a_seed_and_its_tape_make_the_same_history_again(recorded: str) -> None:
    program = f"""
from tests.simulation.world import history
for seed in (7, 8):
    first = history(seed)
    print(first.digest == history(seed, {recorded}).digest)
"""
    assert _printed(program) == "True\nTrue\n"


def _digests(program: str, order: int = 1, **variables: str) -> set[str]:
    """Return what shows the tapes and stories of some seeds, made by another process, in this order or the other one."""
    text = f"from tests.simulation.world import history\nfor seed in {_SEEDS}[::{order}]: print(seed, history(seed).digest)"
    return set(_printed(text, program, **variables).splitlines())


def _other_versions() -> list[str]:
    """Return the programs of other versions of Python that can run the simulation.

    They are those that OTHER_PYTHONS names, with colons in between, and those of the environments of `make test-all`.
    """
    programs = os.environ.get("OTHER_PYTHONS", "").split(":")
    programs += map(str, sorted((_ROOT / ".venv-all").glob("*/bin/python")))
    found: dict[str, str] = {}  # by version
    for program in filter(None, programs):
        done = subprocess.run([program, "-c", _RUNS_SIMULATION], capture_output=True, text=True)
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), program)
    found.pop(f"{sys.version_info[:2]}", None)
    return list(found.values())


@pytest.mark.slow
def test_another_process_makes_the_same_histories() -> None:
    one = _digests(sys.executable, PYTHONHASHSEED="1")
    assert one == _digests(sys.executable, -1, PYTHONHASHSEED="2", PYTHONMALLOC="malloc")


@pytest.mark.slow
def test_another_version_of_python_makes_the_same_histories() -> None:
    if not (programs := _other_versions()):
        pytest.skip("no other version of Python has what the simulation needs: OTHER_PYTHONS may name some")
    ours = _digests(sys.executable)
    for program in programs:
        assert ours == _digests(program), program


def test_shrinking_keeps_what_matters() -> None:
    streams = {name: list(Tape(1).stream(name).numbers) for name in ("a", "b")}
    streams["a"] = [5, 0, 7, 9, 3]
    streams["b"] = [1, 2, 3]

    def fails(candidate: Streams) -> Streams | None:
        return candidate if 9 in candidate.get("a", []) else None

    assert shrink(streams, fails, 10.0) == {"a": [9]}
