"""Held locks on a cluster of three masters: what they cost, and what becomes of them when a master stops for a while."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from bench import page, plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario, failed, found, skipped, spread, values_of, why_not
from bench.served import commands, left, of_stopped
from bench.workers import Worker, cpu_s
from tests.topology.cluster_nodes import MASTERS, Nodes

PREFIX = "b:"
STOPPED = 1  # not the node whose address the clients were given
PATIENT_MS = 60_000  # the nodes do not give each other up meanwhile
ANSWER_S = 60.0


@dataclass
class _Side:
    """An implementation with a cluster of its own."""

    rival: Rival
    nodes: Nodes
    worker: Worker
    clients: list[redis.Redis]
    rounds: int = 0
    before: dict[str, float] = field(default_factory=dict)

    def read(self) -> dict[str, float]:
        answer = self.worker.ask("go read", ANSWER_S)
        return {
            "renewed": answer["renewed"],
            "lost": answer["lost"],
            "client_s": cpu_s(self.worker.pid),
            "server_s": sum(cpu_s(server.pid) for server in self.nodes.masters),
            "commands": commands(self.clients),
            "at": time.monotonic(),
        }

    def keys(self) -> int:
        return left(self.clients, PREFIX).keys


def measure(run: Run) -> Iterator[Record]:
    timeout_s, patience_s = run.pick((30.0, 300.0), (6.0, 30.0), (3.0, 20.0))
    sizes = run.pick((1_000, 10_000, 100_000), (1_000, 10_000), (50,))
    for locks in sizes:
        case = {"locks": locks, "timeout_s": timeout_s}
        able = [rival for rival in run.rivals if rival.cluster and locks <= rival.most_held]
        # At the same time, so that a busy neighbour hurts all of them.
        yield from _together(run, able, case, patience_s)
        for rival in run.rivals:
            if rival not in able:
                why = f"not above {rival.most_held:,} locks" if rival.cluster else "no cluster"
                yield skipped(rival, case, why)


def _together(run: Run, rivals: Sequence[Rival], case: Mapping[str, Any], patience_s: float) -> Iterator[Record]:
    locks, interval_s = case["locks"], case["timeout_s"] / 3
    options = {"locks": locks, "timeout_s": case["timeout_s"], "prefix": PREFIX, "first": 0, "cluster": True}
    run.say(f"cluster: {locks:,} locks of {len(rivals)} implementations")
    with ExitStack() as stack:
        sides = []
        for rival in rivals:
            try:
                nodes = stack.enter_context(Nodes(node_timeout_ms=PATIENT_MS))
                command = [*rival.command(), "hold", nodes.servers[0].url, json.dumps(options)]
                clients = [server.client(socket_timeout=60.0) for server in nodes.masters]
                sides.append(_Side(rival, nodes, stack.enter_context(Worker(command)), clients))
                sides[-1].worker.answer(patience_s)
            except Exception as error:
                sides = [side for side in sides if side.rival is not rival]
                yield failed(rival, case, error)
        yield from _costs(run, sides, case, interval_s)
        yield from _stop(run, sides, case, interval_s)


def _costs(run: Run, sides: list[_Side], case: Mapping[str, Any], interval_s: float) -> Iterator[Record]:
    """Measure in windows of one interval, in which each lock is renewed once; those that fail are taken out."""
    rounds = run.pick(run.rounds, 2, 1)
    for number in range(rounds + 1):
        if number:
            time.sleep(interval_s)
        for side in list(sides):
            try:
                after = side.read()
                if number:
                    values = _costs_of(side, after, case["locks"], interval_s)
                    if number == rounds:  # not before: it is commands itself
                        values["lost"] = max(values["lost"], case["locks"] - side.keys())
                    yield found(side.rival, case, number, values)
                side.before = after
            except Exception as error:
                sides.remove(side)
                yield failed(side.rival, case, error)


def _costs_of(side: _Side, after: Mapping[str, float], locks: int, interval_s: float) -> dict[str, Any]:
    gone = {key: after[key] - side.before[key] for key in after if key != "renewed"}
    # What does not count its renewals is taken to make all that are due.
    counted = after["renewed"] is not None
    renewed = after["renewed"] - side.before["renewed"] if counted else locks * gone["at"] / interval_s
    return {
        "client_us": gone["client_s"] * 1e6 / max(renewed, 1),
        "server_us": gone["server_s"] * 1e6 / max(renewed, 1),
        "commands_s": (gone["commands"] - len(side.clients)) / gone["at"],
        "lost": after["lost"],
    }


def _stop(run: Run, sides: list[_Side], case: Mapping[str, Any], interval_s: float) -> Iterator[Record]:
    """Stop one master for a third of the timeout; look at the locks of the others before it goes on, at all after that."""
    case = {**case, "stopped_s": interval_s}
    run.say(f"cluster: one of {MASTERS} masters stops for {interval_s:g} s")
    behind_s: dict[str, float] = {}
    stopped = [side.nodes.masters[STOPPED] for side in sides]
    for server in stopped:
        server.pause()
    try:
        time.sleep(interval_s)
        for side in list(sides):
            others = [client for number, client in enumerate(side.clients) if number != STOPPED]
            try:
                behind_s[side.rival.name] = of_stopped(side.worker, others, PREFIX).behind_s(case["timeout_s"])
            except Exception as error:
                sides.remove(side)
                yield failed(side.rival, case, error)
    finally:
        for server in stopped:
            server.resume()
    time.sleep(2 * interval_s)
    for side in sides:
        try:
            lost = side.worker.ask("go read", ANSWER_S)["lost"]
            values = {"behind_s": behind_s[side.rival.name], "lost": lost, "keys": side.keys()}
            yield found(side.rival, case, 1, values)
        except Exception as error:
            yield failed(side.rival, case, error)


def tables(records: Sequence[Record]) -> str:
    costs = [record for record in records if "stopped_s" not in record["case"]]
    stops = [record for record in records if "stopped_s" in record["case"]]
    names = list(dict.fromkeys(record["rival"] for record in records))
    sizes = sorted({record["case"]["locks"] for record in records})
    rows = [_cost_row(costs, name, locks) for locks in sizes for name in names]
    timeout_s = max((record["case"]["timeout_s"] for record in records), default=0.0)
    text = [
        f"Each implementation holds locks of {timeout_s:g} s on a cluster of three masters of its own, all at the same "
        "time: CPU time for a renewal of the client's process and of the three servers together, which a few ms/s that "
        "they use without any locks are part of; and the commands that they carry out, those of scripts included.",
        page.markdown(
            ("held", "", "client, µs", "servers, µs", "commands/s", "lost"), [row for row in rows if row is not None]
        ),
    ]
    stopped = [_stop_row(stops, name, locks) for locks in sizes for name in names]
    if any(stopped):
        stopped_s = max(record["case"]["stopped_s"] for record in stops)
        text += [
            f"Then one of the masters stops for {stopped_s:g} s, a third of the timeout: how late the renewals on the "
            "other two are at its end, and what is left of all locks after two thirds more.",
            page.markdown(
                ("held", "", "late on the others, s", "told lost", "keys left"),
                [row for row in stopped if row is not None],
            ),
        ]
    return "\n\n".join(text)


def _cost_row(records: Sequence[Record], name: str, locks: int) -> tuple[str, ...] | None:
    mine = [record for record in records if record["rival"] == name and record["case"]["locks"] == locks]
    if not mine:
        return None
    head = f"{locks:,}", name
    if why := why_not(mine):
        return (*head, why, "", "", "")
    cells = [spread(values_of(mine, name, key)) for key in ("client_us", "server_us", "commands_s")]
    return (*head, *cells, f"{max(values_of(mine, name, 'lost')):,.0f}")


def _stop_row(records: Sequence[Record], name: str, locks: int) -> tuple[str, ...] | None:
    for record in records:
        if record["rival"] == name and record["case"]["locks"] == locks:
            if why := why_not([record]):
                return f"{locks:,}", name, why, "", ""
            values = record["values"]
            return f"{locks:,}", name, f"{values['behind_s']:.1f}", f"{values['lost']:,}", f"{values['keys']:,}"
    return None


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    series: dict[str, list[tuple[float, float]]] = {}
    for name in dict.fromkeys(record["rival"] for record in records):
        for locks in sorted({record["case"]["locks"] for record in records}):
            if values := values_of(records, name, "client_us", locks=locks):
                series.setdefault(name, []).append((locks, statistics.median(values)))
    if not series:
        return {}
    name = "cluster-cpu.svg"
    plot.lines(
        folder / name, series, title="Renewals on three masters", x="locks held", y="client's CPU, µs for a renewal"
    )
    return {name: "The client's CPU time for a renewal on a cluster of three masters, by the number of locks held."}


SCENARIO = Scenario("cluster", "A cluster of three masters", "held", measure, tables, draw)
