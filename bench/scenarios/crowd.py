"""A crowd that wants one lock: a hundred waiters, in one process and in four."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import page, plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario, number
from bench.scenarios.rounds import UP_S, ahead, cases, implementations, in_rounds, medians, table
from bench.workers import Worker, cpu_s
from tests.support.redis_server import RedisServer

HOLD_S = 0.001
PATIENCE_S = 60.0
SELDOM = 0.05  # commands per grant: fewer are not shown


HOW = f"""\
All waiters want one lock: each acquires it, keeps it for {HOLD_S * 1000:g} ms, releases it, and asks again. Fairness is
Jain's index of the grants of all waiters: 1 if all have the same, 0.01 if one of a hundred has all. Commands are those that
the server executes, in scripts, too. Medians and extremes of the rounds. Whoever releases the lock and has it again before
the others ask saves a hand-over: that is a high rate, and unfair."""


class Crowd:
    """Waiters in one or more processes."""

    def __init__(
        self, rival: Rival, stack: ExitStack, processes: int, waiters: int, seconds: float, warm_s: float
    ) -> None:
        self._seconds, self._warm_s = seconds, warm_s
        self._server = stack.enter_context(RedisServer())
        self._client = self._server.client()
        options = {"name": "c", "waiters": waiters // processes, "hold_s": HOLD_S, "timeout_s": 30.0}
        command = [*rival.command(), "crowd", self._server.url, json.dumps(options)]
        self._workers = [stack.enter_context(Worker(command)) for _ in range(processes)]

    def ready(self) -> None:
        for worker in self._workers:
            worker.answer(UP_S)
        self._tell(self._warm_s)
        self._grants(self._warm_s)

    def measure(self) -> dict[str, Any]:
        before = self._read()
        self._tell(self._seconds)
        time.sleep(self._seconds)
        after = self._read()  # before the last ones have been served, whose grants are not counted either
        grants = self._grants(self._seconds)
        total = sum(grants)
        if not total:
            raise RuntimeError(f"no grant in {self._seconds:g} s")
        used = {key: (after[key] - before.get(key, 0)) / total for key in after}
        client_s, server_s, commands = (used.pop(key) for key in ("client_s", "server_s", "commands"))
        return {
            "grants_s": total / self._seconds,
            "fairness": fairness(grants),
            "commands": commands,
            "client_us": client_s * 1e6,
            "server_us": server_s * 1e6,
            "by_name": {name: round(calls, 3) for name, calls in used.items() if calls >= SELDOM},
        }

    def _tell(self, seconds: float) -> None:
        for worker in self._workers:
            worker.tell(f"go {seconds}")

    def _grants(self, seconds: float) -> list[int]:
        return [grants for worker in self._workers for grants in worker.answer(seconds + PATIENCE_S)["grants"]]

    def _read(self) -> dict[str, float]:
        info: Any = self._client.info("stats", "commandstats")
        calls = {key.removeprefix("cmdstat_"): one["calls"] for key, one in info.items() if key.startswith("cmdstat_")}
        return calls | {
            "commands": info["total_commands_processed"],
            "client_s": sum(cpu_s(worker.pid) for worker in self._workers),
            "server_s": cpu_s(self._server.pid),
        }


def fairness(grants: Sequence[int]) -> float:
    """Return Jain's index: 1 if all have the same, 1/n if one of n has all."""
    squares = sum(grant * grant for grant in grants)
    return sum(grants) ** 2 / (len(grants) * squares) if squares else 1.0


def measure(run: Run) -> Iterator[Record]:
    waiters, seconds = run.pick((100, 10.0), (100, 1.0), (8, 0.3))
    for processes in (1, 4):

        def start(rival: Rival, stack: ExitStack, processes: int = processes) -> Crowd:
            return Crowd(rival, stack, processes, waiters, seconds, run.pick(rival.warm_s, rival.warm_s, 0.05))

        # Few rounds that are long: a waiter needs many turns before fairness means something.
        case = {"crowd": f"{waiters} waiters in {processes} {'processes' if processes > 1 else 'process'}"}
        yield from in_rounds(run, case, start, min(run.rounds, run.pick(3, 2, 1)))


def tables(records: Sequence[Record]) -> str:
    text = [HOW]
    columns = {
        "grants_s": "grants/s",
        "fairness": "fairness",
        "commands": "commands/grant",
        "client_us": "CPU of clients, µs/grant",
        "server_us": "of the server",
    }
    names = cases(records, "crowd")
    for crowd in names:
        text += ["", f"**{crowd}**", "", table(records, columns, crowd=crowd), ""]
        text.append(ahead(records, "grants_s", "grants/s", crowd=crowd))
        text.append(ahead(records, "fairness", "fairness", crowd=crowd))
    rivals = implementations([record for record in records if "values" in record])
    rows = [[rival, *(_commands(records, rival, crowd) for crowd in names)] for rival in rivals]
    return "\n".join([*text, "", "Commands per grant:", "", page.markdown(["", *names], rows)])


def _commands(records: Sequence[Record], rival: str, crowd: str) -> str:
    found: list[Mapping[str, float]] = [
        record["values"]["by_name"]
        for record in records
        if record["rival"] == rival and record["case"]["crowd"] == crowd and "values" in record
    ]
    most = sorted(found[-1].items(), key=lambda one: -one[1])[:4] if found else []
    return ", ".join(f"{name} {number(calls)}" for name, calls in most)


def draw(records: Sequence[Record], folder: Path) -> dict[str, str]:
    names = cases(records, "crowd")
    rates, shares = ({crowd: medians(records, key, crowd=crowd) for crowd in names} for key in ("grants_s", "fairness"))
    plot.bars(folder / "crowd-rate.svg", rates, title="Many waiters on one lock: rate", y="grants/s", better="more")
    plot.bars(
        folder / "crowd-fairness.svg",
        shares,
        title="Many waiters on one lock: fairness",
        y="Jain's index",
        better="more",
    )
    return {
        "crowd-rate.svg": f"Grants per second of one lock that each holder keeps for {HOLD_S * 1000:g} ms.",
        "crowd-fairness.svg": "Fairness between the waiters: 1 if all are granted the lock equally often.",
    }


SCENARIO = Scenario("crowd", "Many waiters on one lock", "waiters", measure, tables, draw, mode="crowd")
