"""The small operations: what one call costs its caller, measured by pytest-benchmark (bench/bench_operations.py)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import page, plot
from bench.scenarios import Record, Run, Scenario, found, values_of
from bench.scenarios.rounds import cases, implementations, medians
from bench.workers import ROOT, python

OPERATIONS = "bench/bench_operations.py"


def measure(run: Run) -> Iterator[Record]:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        how = ["--benchmark-disable"] if run.tiny else [f"--benchmark-json={results}"]
        command = python("pytest", OPERATIONS, "-q", "-p", "no:cacheprovider", *how)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("\n".join(done.stdout.splitlines()[-20:]))
        benchmarks = json.loads(results.read_text())["benchmarks"] if results.exists() else []
    rivals = {rival.name: rival for rival in run.rivals}
    for one in benchmarks:
        if one["param"] in rivals:
            values = {"us": one["stats"]["median"] * 1e6, "iqr_us": one["stats"]["iqr"] * 1e6}
            yield found(rivals[one["param"]], {"operation": one["group"]}, 1, values)


def tables(records: Sequence[Record]) -> str:
    """Return the median of each operation and implementation, with the range of half of the rounds."""
    operations = cases(records, "operation")
    rows = []
    for name in implementations(records):
        row = [name]
        for operation in operations:
            us, iqr = (values_of(records, name, key, operation=operation) for key in ("us", "iqr_us"))
            row.append(f"{us[0]:,.1f} ({iqr[0]:,.1f})" if us else "")
        rows.append(row)
    return "\n".join(
        [
            "One thread that calls one operation after the other, on a server that does nothing else: microseconds, the "
            "median, and in brackets the interquartile range. A lock of wheel_lock knows by its deadline whether it is "
            "held; the others ask the server. What a package has not got is empty.",
            "",
            page.markdown(["µs", *operations], rows),
        ]
    )


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    us = {operation: medians(records, "us", operation=operation) for operation in cases(records, "operation")}
    plot.bars(
        folder / "operations-time.svg", us, title="Small operations, one thread", y="µs", better="less", log_y=True
    )
    return {"operations-time.svg": "Time of one call in microseconds, by operation."}


SCENARIO = Scenario("operations", "Small operations", "pairs", measure, tables, draw, mode="pairs")
