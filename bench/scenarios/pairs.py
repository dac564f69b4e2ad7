"""Acquire and release of free locks: one after the other, by many threads or tasks, and beside threads that compute."""

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
from bench.workers import Worker, cpu_s
from tests.support.redis_server import RedisServer

PATIENCE_S = 60.0


class Callers:
    """A worker whose callers acquire and release."""

    def __init__(self, rival: Rival, stack: ExitStack, options: Mapping[str, Any], seconds: float) -> None:
        self._seconds = seconds
        self._spin = options["spin"]
        self._server = stack.enter_context(RedisServer())
        command = [*rival.command(), "pairs", self._server.url, json.dumps(options)]
        self._worker = stack.enter_context(Worker(command))

    def ready(self) -> None:
        self._worker.answer(UP_S)
        if self._spin:
            self._worker.stop()

    def measure(self) -> dict[str, Any]:
        if self._spin:
            self._worker.go_on()
        client_s, server_s = cpu_s(self._worker.pid), cpu_s(self._server.pid)
        found = self._worker.ask(f"go {self._seconds}", self._seconds + PATIENCE_S)
        client_s, server_s = cpu_s(self._worker.pid) - client_s, cpu_s(self._server.pid) - server_s
        if self._spin:
            self._worker.stop()  # or its threads would compute during the turns of the others
        pairs = found["pairs"]
        if not pairs:
            raise RuntimeError(f"no pair in {found['seconds']:.1f} s")
        return {
            "pairs_s": pairs / found["seconds"],
            "client_us": None if self._spin else client_s / pairs * 1e6,
            "server_us": server_s / pairs * 1e6,
        }


HOW = """\
Each caller acquires and releases free locks, a new lock object for each pair, with whatever renewal the package starts by
itself; each implementation in its own process with its own server, in turns of the same length. Medians and extremes of
the rounds; CPU time is that of all threads of the process, and not told where some compute."""


def measure(run: Run) -> Iterator[Record]:
    threads, tasks = run.pick((64, 500), (64, 500), (4, 8))
    seconds = run.pick(3.0, 0.6, 0.1)
    for callers, kind, spin in ((1, "threads", 0), (threads, "threads", 0), (tasks, "tasks", 0), (1, "threads", 3)):
        what = f"{callers} {kind if callers > 1 else 'thread'}{f' beside {spin} that compute' if spin else ''}"

        def start(
            rival: Rival, stack: ExitStack, callers: int = callers, kind: str = kind, spin: int = spin
        ) -> Callers:
            warm_s = run.pick(rival.warm_s, rival.warm_s, 0.05)
            options = {"callers": callers, "kind": kind, "timeout_s": 30.0, "warm_s": warm_s, "spin": spin}
            return Callers(rival, stack, options, seconds)

        yield from in_rounds(run, {"callers": what}, start)


def tables(records: Sequence[Record]) -> str:
    text = [HOW]
    columns = {"pairs_s": "pairs/s", "client_us": "CPU of the client, µs/pair", "server_us": "of the server, µs/pair"}
    for what in cases(records, "callers"):
        text += ["", f"**{what}**", "", table(records, columns, callers=what), ""]
        text.append(ahead(records, "pairs_s", "pairs/s", callers=what))
    return "\n".join(text)


def draw(records: Sequence[Record], folder: Path) -> dict[str, str]:
    names = cases(records, "callers")
    rates = {what: medians(records, "pairs_s", callers=what) for what in names}
    plot.bars(
        folder / "pairs-rate.svg",
        rates,
        title="Acquire and release of free locks",
        y="pairs/s",
        better="more",
        log_y=True,
    )
    return {"pairs-rate.svg": "Pairs of acquire and release per second, by the number of callers in the process."}


SCENARIO = Scenario("pairs", "Acquire and release", "pairs", measure, tables, draw, mode="pairs")
