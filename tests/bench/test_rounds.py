"""The scenarios that are measured in rounds, with tiny numbers, and the small operations: that they run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from bench.rivals import Rival, in_python
from bench.rivals.worker import run_threads
from bench.scenarios import Record, Run, load
from bench.scenarios.crowd import fairness
from bench.scenarios.rounds import ahead, in_rounds, table
from bench.workers import ROOT, Unable
from tests.support.redis_server import require_redis_server

PLOTS = {
    "pairs": ["pairs-rate.svg"],
    "handover": ["handover-delay.svg"],
    "crowd": ["crowd-rate.svg", "crowd-fairness.svg"],
}


def saying(text: str) -> Rival:
    """A worker that ends at once."""
    return Rival(text, lambda: [sys.executable, "-c", f"print('failed {text}')"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
def test_a_scenario(name: str, tmp_path: Path) -> None:
    require_redis_server()
    scenario = load(name)
    rivals = {rival.name: rival for rival in in_python() if scenario.mode in rival.modes}
    compared = [rivals["wheel_lock"], rivals["redis-py, Lock"]]
    run = Run([*compared, saying("it is broken"), saying("no such mode")], tiny=True, rounds=1)
    records = list(scenario.measure(run))
    cases = {str(record["case"]) for record in records}
    assert len(records) == 4 * len(cases)
    for rival in compared:
        assert all("values" in record for record in records if record["rival"] == rival.name), records
    text = scenario.tables(records)
    assert text.count("failed: ") == text.count("skipped: no such mode") == len(cases)
    assert list(scenario.draw(records, tmp_path)) == PLOTS[name]
    assert all((tmp_path / plot).stat().st_size > 1000 for plot in PLOTS[name])


class Side:
    def __init__(self, name: str, log: list[str], fails_at: int, stack: ExitStack) -> None:
        self._name, self._log, self._fails_at = name, log, fails_at
        stack.callback(lambda: log.append(f"{name} ends"))

    def ready(self) -> None:
        if not self._fails_at:
            raise Unable("no tasks")

    def measure(self) -> Mapping[str, float]:
        self._log.append(self._name)
        self._fails_at -= 1
        if not self._fails_at:
            raise RuntimeError("it is slow")
        return {"rate": float(len(self._log))}


def in_turns(rounds: int, fails_at: Mapping[str, int]) -> tuple[list[Record], list[str]]:
    log: list[str] = []
    run = Run([saying(name) for name in fails_at], rounds=rounds)

    def start(rival: Rival, stack: ExitStack) -> Side:
        return Side(rival.name, log, fails_at[rival.name], stack)

    return list(in_rounds(run, {"what": "it"}, start)), log


def test_each_round_begins_with_another() -> None:
    records, log = in_turns(4, {"a": -1, "b": -1, "c": -1})
    assert [log[first : first + 3] for first in range(0, 12, 3)] == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert sorted(log[12:]) == ["a ends", "b ends", "c ends"]
    assert [record["round"] for record in records] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_what_fails_is_ended_and_the_others_go_on() -> None:
    records, log = in_turns(3, {"a": -1, "b": 2, "c": 0})
    assert log == ["c ends", "a", "b", "b", "b ends", "a", "a", "a ends"]
    assert [record for record in records if "values" not in record] == [
        {"rival": "c", "case": {"what": "it"}, "skipped": "no tasks"},
        {"rival": "b", "case": {"what": "it"}, "failed": "it is slow"},
    ]
    rows = table(records, {"rate": "rate", "other": "other"}, what="it").splitlines()[2:]
    assert rows == ["| a | 6.00 (2.00 - 7.00) |  |", "| b | failed: it is slow |  |", "| c | skipped: no tasks |  |"]


def record(rival: str, value: float) -> Record:
    return {"rival": rival, "case": {"what": "it"}, "round": 1, "values": {"rate": value}}


def test_what_is_better_is_named() -> None:
    named = partial(
        ahead, [record("wheel_lock", 2.0), record("a", 3.0), record("b", 1.0), record("c", 5.0)], "rate", "it"
    )
    assert named() == "Ahead of wheel_lock in it: c (2.50 times), a (1.50 times)."
    assert named(less=True) == "Ahead of wheel_lock in it: b (2.00 times)."
    assert ahead([record("wheel_lock", 2.0), record("a", 1.0)], "rate", "it") == "None is ahead of wheel_lock in it."


def test_a_caller_that_fails_fails_its_worker() -> None:
    def work(caller: int) -> None:
        if caller == 2:
            raise ValueError("no connection is left")

    with pytest.raises(ValueError, match="no connection is left"):
        run_threads(work, 4)


def test_fairness() -> None:
    assert fairness([3, 3, 3, 3]) == 1.0
    assert fairness([8, 0, 0, 0]) == 0.25


@pytest.mark.slow
def test_the_small_operations() -> None:
    require_redis_server()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--benchmark-disable"]
    command = [sys.executable, "-m", "pytest", *options, "bench/bench_operations.py"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
