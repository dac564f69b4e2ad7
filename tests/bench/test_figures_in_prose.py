"""Figures that the documentation says outside of docs/performance.md are those of the results in bench/results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 30.0


def held(value: str) -> dict[int, float]:
    """The median of a value of wheel_lock for each number of locks of 30 s, as measured."""
    records = json.loads((ROOT / "bench" / "results" / "held.json").read_text())["records"]
    found: dict[int, list[float]] = {}
    for record in records:
        case = record["case"]
        if record["rival"] == "wheel_lock" and case["timeout_s"] == TIMEOUT_S and value in record.get("values", ()):
            found.setdefault(case["locks"], []).append(record["values"][value])
    return {locks: statistics.median(values) for locks, values in sorted(found.items())}


def test_what_held_locks_cost() -> None:
    page = (ROOT / "docs" / "operations" / "sizing.md").read_text()
    client, server, memory = held("client_s_per_s"), held("server_s_per_s"), held("rss")
    rows = [
        f"| {locks:,} | {client[locks]:.2%} | {server[locks]:.1%} | {memory[locks] / 2**20:.0f} MB |\n".replace(
            "%", " %"
        )
        for locks in client
    ]
    assert rows
    assert "".join(rows) in page, f"the table should have these lines:\n{''.join(rows)}"
    few, *_, many = client
    each = (memory[many] - memory[few]) / (many - few) / 1000
    assert f"about {each:.1f} kB for each lock, on top of some {memory[few] / 2**20:.0f} MB" in page
    at_the_server = held("server_memory")
    each = (at_the_server[many] - at_the_server[few]) / (many - few) / 1000
    assert f"one key for each lock, about {each:.2f} kB with a short name" in page, each
