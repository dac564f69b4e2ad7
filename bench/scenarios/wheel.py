"""The wheel alone: what timers cost while they wait, when they are due, and when there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario
from bench.scenarios.rounds import UP_S, ahead, cases, in_rounds, medians, table
from bench.workers import Worker

NO_URL = "-"


class Timers:
    """A worker with many timers."""

    def __init__(self, rival: Rival, stack: ExitStack, options: Mapping[str, Any]) -> None:
        self._worker = stack.enter_context(Worker([*rival.command(), "wheel", NO_URL, json.dumps(options)]))

    def ready(self) -> None:
        self._worker.answer(UP_S)

    def measure(self) -> dict[str, Any]:
        calls = {what: self._worker.ask(f"go {what}")["cpu_ns"] for what in ("schedule", "cancel")}
        due, idle = self._worker.ask("go due"), self._worker.ask("go idle")
        return {
            "start_us": calls["schedule"] / 1000,
            "cancel_us": calls["cancel"] / 1000,
            "due_us": due["cpu_us"],
            "late_p50_ms": due["p50_ms"],
            "late_p99_ms": due["p99_ms"],
            "idle_wake_ups_s": idle["pending"]["wake_ups"],
            "idle_cpu_percent": idle["pending"]["cpu"] * 100,
        }


HOW = """\
The timers of a user's own thread. *Start* and *cancel*: CPU time of the process for each call while so many timers are
pending, with what a thread of the package, or the event loop, does because of it. *Due*: CPU time from the start of all
timers, which become due at random times, to the end of the last, for each; and how late they are called. *Idle*: wake-ups
and CPU while all of them are far in the future. Ticks are 10 ms where there are ticks: lateness up to that is meant. Of
Netty's idle time only its timer's thread is counted."""


def measure(run: Run) -> Iterator[Record]:
    options = {
        "spread_s": run.pick(10.24, 1.0, 0.2),
        "ahead_s": run.pick(2.0, 0.5, 0.2),
        "idle_s": run.pick(3.0, 0.5, 0.2),
        "warm_s": run.pick(10.0, 5.0, 0.0),
    }
    for timers, rounds in run.pick(((1_000, 3), (100_000, 3)), ((1_000, 1), (20_000, 1)), ((50, 1),)):

        def start(rival: Rival, stack: ExitStack, timers: int = timers) -> Timers:
            return Timers(rival, stack, options | {"timers": timers})

        yield from in_rounds(run, {"timers": timers}, start, rounds)


def tables(records: Sequence[Record]) -> str:
    text = [HOW]
    columns = {
        "start_us": "start, µs",
        "cancel_us": "cancel, µs",
        "due_us": "due, µs",
        "late_p50_ms": "late p50, ms",
        "late_p99_ms": "late p99, ms",
        "idle_wake_ups_s": "idle, wake-ups/s",
        "idle_cpu_percent": "idle, % of a core",
    }
    for timers in cases(records, "timers"):
        text += ["", f"**{timers:,} timers**", "", table(records, columns, timers=timers), ""]
        text += [ahead(records, "due_us", "CPU until called", less=True, timers=timers)]
        text += [ahead(records, "late_p99_ms", "lateness", less=True, timers=timers)]
    return "\n".join(text)


def draw(records: Sequence[Record], folder: Path) -> dict[str, str]:
    costs = {
        f"{what}, {timers:,} timers": medians(records, key, timers=timers)
        for timers in cases(records, "timers")
        for what, key in (("start", "start_us"), ("cancel", "cancel_us"), ("until called", "due_us"))
    }
    plot.bars(folder / "wheel-cpu.svg", costs, title="CPU time per timer", y="µs", better="less", log_y=True)
    return {
        "wheel-cpu.svg": "CPU time of the process for each timer: to start it, to cancel it, and until it is called."
    }


SCENARIO = Scenario("wheel", "The wheel alone", "wheel", measure, tables, draw, mode="wheel")
