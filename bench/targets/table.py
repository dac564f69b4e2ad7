"""Every promise about speed beside its rival, in one run: ``python -m bench.targets.table --help``.

Each row works in fresh processes with servers of its own. The two sides take turns, or work at the same time, so that a
busy neighbour hurts both; the ratio is the median of the ratios of single rounds.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import page
from bench.rivals import in_python
from bench.scenarios.handover import Players
from bench.workers import Worker, cpu_s, python
from tests.support.redis_server import RedisServer

Values = dict[str, float]
Round = dict[str, Values]
"""What a round has found, by side: "ours", "rival"."""


@dataclass(frozen=True)
class Scale:
    """How much of everything is measured."""

    rounds: int = 5
    timeout_s: float = 30.0
    held: tuple[int, int, int] = (1_000, 10_000, 100_000)
    most_held: int = 1_000_000
    most_held_by_rival: int = 100_000
    window_s: float = 10.0  # for renewals: one interval, in which each lock is renewed once
    pairs_s: float = 3.0
    hand_overs: int = 200
    bulk_held: int = 100_000
    bulk: int = 500_000
    timers: int = 100_000
    due_s: float = 20.0


FULL = Scale()
SHORT = replace(FULL, rounds=1, most_held=150_000, window_s=4.0, pairs_s=2.0, bulk_held=20_000, bulk=100_000, due_s=8.0)


class Figure(NamedTuple):
    """A line of the table.

    Attributes:
        key: Which of the values of a round it shows.
        what: Its name, in terms of the row.
        target: The bound of the ratio of ours to the rival's; None if nothing is promised.
        at_least: True if more is better.
        absolute: True if the bound is that of our value.
    """

    key: str
    what: str
    target: float | None
    at_least: bool = False
    absolute: bool = False


class Row(NamedTuple):
    """What is measured together."""

    name: str
    what: str
    figures: tuple[Figure, ...]
    measure: Callable[[Scale], Generator[Round, None, None]]


def renewals(held: int, held_by_rival: int, most_calls: int, scale: Scale) -> Generator[Round, None, None]:
    """Both sides hold locks, at the same time; a round is a window in which the CPU time and the renewals are counted."""
    with ExitStack() as stack:
        sides = {}
        for side, locks in (("ours", held), ("rival", held_by_rival)):
            server = stack.enter_context(RedisServer())
            worker = Worker(python("bench.targets.holding", side, server.port, locks, scale.timeout_s, most_calls))
            sides[side] = stack.enter_context(worker), server
        for worker, _ in sides.values():
            worker.answer()

        def read() -> Round:
            return {side: worker.ask() | {"server_s": cpu_s(server.pid)} for side, (worker, server) in sides.items()}

        time.sleep(scale.timeout_s / 3)  # settle
        before = read()
        while True:
            time.sleep(scale.window_s)
            after = read()
            yield {side: _per_renewal(before[side], after[side]) for side in sides}
            before = after


def _per_renewal(before: Values, after: Values) -> Values:
    renewed = after["renewed"] - before["renewed"]
    return {
        "client us": (after["cpu_s"] - before["cpu_s"]) * 1e6 / renewed,
        "server us": (after["server_s"] - before["server_s"]) * 1e6 / renewed,
        "renewals": renewed,
    }


def pairs(mode: str, scale: Scale) -> Generator[Round, None, None]:
    """Both sides work in short turns in one process."""
    while True:
        with RedisServer() as server, Worker(python("bench.targets.pairs", mode, server.port, scale.pairs_s)) as worker:
            worker.answer()
            yield worker.ask()


def hand_overs(scale: Scale) -> Generator[Round, None, None]:
    """Two processes for each side, which take turns."""
    rivals = {rival.name: rival for rival in in_python()}
    with ExitStack() as stack:
        sides = {
            side: Players(rivals[name], stack, scale.hand_overs // 2)
            for side, name in (("ours", "wheel_lock"), ("rival", "redis-py, bare minimum"))
        }
        for players in sides.values():
            players.ready()
        while True:
            yield {side: players.measure() for side, players in sides.items()}


def bulk_lag(scale: Scale) -> Generator[Round, None, None]:
    """No rival: redis-py holds nothing while it sends a pipeline."""
    while True:
        arguments = scale.bulk_held, scale.bulk, scale.timeout_s
        with RedisServer() as server, Worker(python("bench.targets.bulk", server.port, *arguments)) as worker:
            worker.answer()
            yield {"ours": worker.ask()}


def timers(line: str, together: bool, scale: Scale) -> Generator[Round, None, None]:
    """A process for each side: at the same time what waits most of the time, in turns what does not."""
    with ExitStack() as stack:
        sides = {}
        for side in ("ours", "rival"):
            sides[side] = stack.enter_context(Worker(python("bench.targets.timers", side, scale.timers, scale.due_s)))
            sides[side].answer()
        while True:
            if together:
                for worker in sides.values():
                    worker.tell(line)
                yield {side: worker.answer() for side, worker in sides.items()}
            else:
                yield {side: worker.ask(line) for side, worker in sides.items()}


def rows(scale: Scale) -> list[Row]:
    """Return all rows, in the order of the table."""

    def renewal(name: str, held: int, client: float, server: float | None, held_by_rival: int, most_calls: int) -> Row:
        figures = Figure("client us", "client, µs", client), Figure("server us", "server, µs", server)
        return Row(
            name, f"renewal, {held:,} held: CPU of the", figures, partial(renewals, held, held_by_rival, most_calls)
        )

    def pair(mode: str, what: str, target: float, cpu: bool = True) -> Row:
        figures = [Figure("pairs/s", "pairs/s", target, at_least=True)]
        figures += [Figure("cpu us", "client's CPU, µs", None)] if cpu else []
        return Row(f"pair-{mode}", f"acquire+release, {what}:", tuple(figures), partial(pairs, mode))

    few, some, many = scale.held
    return [
        renewal("renew-1k", few, 0.2, 0.75, few, few),
        renewal("renew-10k", some, 0.05, 0.7, some, some),
        renewal("renew-100k", many, 0.03, 0.6, many, many),
        renewal("renew-1m", scale.most_held, 0.03, None, scale.most_held_by_rival, 500),
        pair("main", "main thread", 1.0),
        pair("worker", "a worker thread", 1.0),
        pair("threads", "64 threads", 4.0),
        pair("tasks", "500 tasks", 5.0),
        pair("spinning", "beside 3 spinning threads", 1.0, cpu=False),
        Row("hand-over", "hand-over between processes:", (Figure("p50_ms", "p50, ms", 1.0),), hand_overs),
        Row(
            "bulk-lag",
            f"{scale.bulk_held:,} held while {scale.bulk:,} are acquired:",
            (Figure("lag p99 ms", "lag p99, ms", 50.0, absolute=True),),
            bulk_lag,
        ),
        Row(
            "timer-calls",
            f"timers, {scale.timers:,} pending:",
            (Figure("start us", "CPU of new_timeout, µs", 1.5), Figure("cancel us", "CPU of cancel, µs", 3.0)),
            partial(timers, "calls", False),
        ),
        Row(
            "timer-due",
            f"timers, {scale.timers:,} over {scale.due_s:g} s:",
            (Figure("cpu us", "CPU until called, µs", 0.5), Figure("late p99 ms", "late p99, ms", 25.0, absolute=True)),
            partial(timers, "due", True),
        ),
    ]


HEAD = ("what", "ours", "rival", "ratio (from - to)", "target")


def lines_of(row: Row, records: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the lines of a row: medians over the rounds, then the median and the extremes of the ratios of one round."""
    mine = [record for record in records if record["row"] == row.name]
    if failed := [record for record in mine if record["side"] == "failed"]:
        return [(row.name, "failed", "", "", str(failed[0]["values"]["error"]))]
    return [_line(row, figure, mine) for figure in row.figures] if mine else []


def _line(row: Row, figure: Figure, records: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    ours, rival = (
        [record["values"][figure.key] for record in records if record["side"] == side] for side in ("ours", "rival")
    )
    ratios = sorted(one / other for one, other in zip(ours, rival, strict=True)) if rival else []
    target = ""
    if figure.target is not None:
        found = statistics.median(ours if figure.absolute else ratios)
        reached = found >= figure.target if figure.at_least else found <= figure.target
        target = f"{'>=' if figure.at_least else '<='} {figure.target:g}{'' if reached else ' missed'}"
    return (
        f"{row.what} {figure.what}",
        _short(statistics.median(ours)),
        _short(statistics.median(rival)) if rival else "",
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})" if rival else "",
        target,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def run(row: Row, scale: Scale) -> list[dict[str, Any]]:
    """Measure a row. One that fails has a single record, of the side "failed"; its processes have ended in any case."""
    records: list[dict[str, Any]] = []
    measured = row.measure(scale)
    try:
        for number in range(1, scale.rounds + 1):
            print(
                f"{time.strftime('%H:%M:%S')} {row.name}, round {number} of {scale.rounds}", file=sys.stderr, flush=True
            )
            sides = next(measured)
            records += [
                {"row": row.name, "side": side, "round": number, "values": values} for side, values in sides.items()
            ]
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        print(f"{row.name}: {failure}", file=sys.stderr, flush=True)
        return [{"row": row.name, "side": "failed", "round": 0, "values": {"error": failure}}]
    finally:
        measured.close()
    return records


def show(line: Sequence[str]) -> None:
    what, ours, rival, ratio, target = line
    if ours == "failed":
        text = f"{what}: failed: {target}"
    else:
        text = f"{what:53}{ours:>9}{rival:>9}  {ratio:20} {target}"
    print(text[:110].rstrip(), flush=True)


def main() -> int:
    given = _arguments()
    scale = SHORT if given.short else FULL
    scale = replace(scale, rounds=given.rounds) if given.rounds else scale
    table = {row.name: row for row in rows(scale)}
    if unknown := [name for name in given.rows if name not in table]:
        print(f"there is no row {unknown[0]}; there are {' '.join(table)}", file=sys.stderr)
        return 2
    names = given.rows or list(table)
    earlier = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    records = [record for record in earlier if record["row"] not in names]
    # Ends everything in order, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    show(HEAD)
    try:
        for name in names:
            found = run(table[name], scale)
            for line in lines_of(table[name], found):
                show(line)
            records += found
    except KeyboardInterrupt:
        return 130
    finally:
        if given.json:
            given.json.write_text(json.dumps(records, indent=1) + "\n")
    if given.write:
        lines = [line for row in table.values() for line in lines_of(row, records)]
        text = f"{page.machine()}; medians of {scale.rounds} rounds.\n\n{page.markdown(HEAD, lines)}"
        page.write(given.write, "targets", text)
    return int(any(record["side"] == "failed" for record in records))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.targets.table", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"all by default: {' '.join(row.name for row in rows(FULL))}"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds whose median is shown (5)")
    parser.add_argument(
        "--short", action="store_true", help="one round of less of everything: two minutes, and no promise"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="every round's results; rows that are not measured now stay"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table of all rows in FILE into a page, too")
    given = parser.parse_args()
    if given.write and given.short:
        parser.error("what --short finds is no figure for a page")
    return given


if __name__ == "__main__":
    sys.exit(main())
