"""Rounds in which rivals take turns, and what is said of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import pytest

from bench.rivals import Rival
from bench.rivals.worker import run_threads
from bench.scenarios import Record, Run
from bench.scenarios.crowd import fairness
from bench.scenarios.rounds import ahead, in_rounds, table
from bench.workers import Unable


def saying(text: str) -> Rival:
    """A worker that ends at once."""
    return Rival(text, lambda: [sys.executable, "-c", f"print('failed {text}')"])


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
