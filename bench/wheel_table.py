"""Nanoseconds per timer of the wheel and of what else can hold timers: ``python -m bench.wheel_table --help``.

The implementations take turns within a round, so that a busy neighbour hurts all of them; the median of the rounds is
shown. The default clock counts the CPU time of this process, which a neighbour can stretch but not fill.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from bench.wheel.schedulers import OPERATIONS, SCHEDULERS, Scheduler, ThreadScheduler
from bench.wheel.workload import SIZES, SPREAD, deadlines, measure

LAPS_UP_TO = 50_000  # timers: fewer are measured several times a round until that many have been


def main() -> None:
    arguments = _arguments()
    clock = time.perf_counter if arguments.wall else time.process_time
    rows: list[dict[str, Any]] = []
    for size in arguments.sizes:
        kinds = [kind for kind in SCHEDULERS if size <= kind.most]
        results = _rounds(kinds, size, arguments.spread, arguments.rounds, clock)
        rows += _rows(kinds, size, results)
        _print_size(size, [row for row in rows if row["size"] == size])
    memory = {} if arguments.no_memory else _memory(min(100_000, max(arguments.sizes)), arguments.spread)
    for name, octets in memory.items():
        print(f"{name:<18}{octets:>8.0f} bytes per timer, beside the timer's own object")
    if arguments.json:
        document = {
            "python": platform.python_version(),
            "machine": platform.platform(),
            "clock": "wall" if arguments.wall else "cpu",
            "spread_ticks": arguments.spread,
            "results": rows,
            "bytes_per_timer": memory,
        }
        Path(arguments.json).write_text(json.dumps(document, indent=2) + "\n")


def _rounds(
    kinds: list[type[Scheduler]], size: int, spread: int, rounds: int, clock: Any
) -> dict[str, list[dict[str, float]]]:
    ticks = deadlines(size, spread)
    results: dict[str, list[dict[str, float]]] = {kind.name: [] for kind in kinds}
    for turn in range(rounds):
        for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
            laps = 1 if kind is ThreadScheduler else max(LAPS_UP_TO // size, 1)
            results[kind.name].append(measure(kind, ticks, spread, clock, laps))
        print(f"{size:,} timers, round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    return results


def _rows(kinds: list[type[Scheduler]], size: int, results: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    rows = []
    for operation in OPERATIONS:
        for kind in kinds:
            if operation not in kind.operations:
                continue
            values = [result[operation] for result in results[kind.name]]
            ours = [result[operation] for result in results[kinds[0].name]]
            rows.append(
                {
                    "size": size,
                    "operation": operation,
                    "implementation": kind.name,
                    "ns": [round(value, 1) for value in values],
                    "median_ns": round(statistics.median(values), 1),
                    "ratio": round(statistics.median(values) / statistics.median(ours), 2),
                }
            )
    return rows


def _print_size(size: int, rows: list[dict[str, Any]]) -> None:
    print(f"{f'{size:,} timers':<22}{'':<18}{'ns':>9}{'lowest':>9}{'highest':>9}{'x wheel':>9}")
    operation = ""
    for row in rows:
        label = "" if row["operation"] == operation else row["operation"]
        operation = row["operation"]
        lowest, highest = min(row["ns"]), max(row["ns"])
        print(
            f"{label:<22}{row['implementation']:<18}{row['median_ns']:>9.0f}{lowest:>9.0f}{highest:>9.0f}"
            f"{row['ratio']:>9.2f}"
        )
    print()


def _memory(size: int, spread: int) -> dict[str, float]:
    """What each implementation allocates for a timer that it holds; the timers and their ticks are there already."""
    ticks = deadlines(size, spread)
    octets = {}
    for kind in SCHEDULERS:
        if kind.most < size:
            continue
        scheduler = kind(size)
        tracemalloc.start()
        scheduler.schedule(ticks)
        octets[kind.name] = tracemalloc.get_traced_memory()[0] / size
        tracemalloc.stop()
        scheduler.close()
    return octets


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.wheel_table", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of timers")
    parser.add_argument("--rounds", type=int, default=5, help="rounds whose median is shown")
    parser.add_argument("--spread", type=int, default=SPREAD, help="ticks until a timer is due; a rotation has 1024")
    parser.add_argument("--wall", action="store_true", help="measure with the clock on the wall, not with CPU time")
    parser.add_argument("--no-memory", action="store_true", help="leave out the bytes per timer")
    parser.add_argument("--json", metavar="FILE", help="write every round's result to a file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
