"""The most important figures of all results in one table: the library beside redis-py and the best of the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bench import page
from bench.plot import LIMIT, OURS
from bench.scenarios import Record, number
from bench.scenarios.losses import counts


class Figure(NamedTuple):
    """A row of the table.

    Attributes:
        what: What it shows.
        link: The section that has the details.
        scenario: The scenario whose results it is from.
        case: What the case of a record must have.
        value: Returns the value of a record.
        less: True if less is better.
        unit: Stands behind the value.
    """

    what: str
    link: str
    scenario: str
    case: Mapping[str, Any]
    value: Callable[[Mapping[str, Any]], float]
    less: bool = False
    unit: str = ""


def _told_in_time(values: Mapping[str, Any]) -> float:
    before, after, never = counts(values)
    return 100 * before / (before + after + never)


_PAUSED = "losses.md#losses-what-the-user-is-told-and-when"
FIGURES: tuple[Figure, ...] = (
    *(
        Figure(
            f"losses that are told before the lease's end, server {words}",
            _PAUSED,
            "losses",
            {"case": case, "timeout_s": 3.0},
            _told_in_time,
            unit=" %",
        )
        for case, words in (("paused", "paused for 7.5 s"), ("gone", "gone for good"))
    ),
    Figure(
        "CPU of the client for a renewal, 100,000 locks of 30 s",
        "held.md#locks-that-are-held",
        "held",
        {"locks": 100_000, "timeout_s": 30.0},
        lambda values: float(values["client_s_per_renewal"]) * 1e6,
        less=True,
        unit=" µs",
    ),
    Figure(
        "CPU of the server for a renewal, 100,000 locks of 30 s",
        "held.md#locks-that-are-held",
        "held",
        {"locks": 100_000, "timeout_s": 30.0},
        lambda values: float(values["server_s_per_renewal"]) * 1e6,
        less=True,
        unit=" µs",
    ),
    Figure(
        "memory of the process, 100,000 locks",
        "held.md#locks-that-are-held",
        "held",
        {"locks": 100_000, "timeout_s": 30.0},
        lambda values: float(values["rss"]) / 2**20,
        less=True,
        unit=" MB",
    ),
    *(
        Figure(
            f"acquire and release of free locks, {callers}",
            "pairs.md#acquire-and-release",
            "pairs",
            {"callers": callers},
            lambda values: float(values["pairs_s"]),
            unit="/s",
        )
        for callers in ("1 thread", "500 tasks")
    ),
    Figure(
        "hand-over to a waiter in another process",
        "waiters.md#hand-over-between-processes",
        "handover",
        {},
        lambda values: float(values["p50_ms"]),
        less=True,
        unit=" ms",
    ),
)


def medians(records: Sequence[Record], figure: Figure) -> dict[str, float]:
    """Return the median of each implementation."""
    found: dict[str, list[float]] = {}
    for record in records:
        of_case = all(record["case"].get(name) == value for name, value in figure.case.items())
        if "values" in record and of_case and record["rival"] != LIMIT:
            found.setdefault(record["rival"], []).append(figure.value(record["values"]))
    return {rival: statistics.median(values) for rival, values in found.items()}


def table(records_of: Callable[[str], Sequence[Record]]) -> str:
    """Return the table from the records of each scenario."""
    rows = []
    for figure in FIGURES:
        values = medians(records_of(figure.scenario), figure)
        best = min if figure.less else max
        redis_py = {rival: value for rival, value in values.items() if rival.startswith("redis-py")}
        others = {
            rival: value for rival, value in values.items() if rival not in redis_py and not rival.startswith(OURS)
        }
        row = [f"[{figure.what}](benchmarks/{figure.link})"]
        for group in ({OURS: values[OURS]} if OURS in values else {}, redis_py, others):
            if group:
                name = best(group, key=group.__getitem__)
                row.append(f"{number(group[name])}{figure.unit}" + ("" if name == OURS else f", {name}"))
            else:
                row.append("")
        rows.append(row)
    return page.markdown(("what", "wheel_lock", "best with redis-py", "best of the others"), rows)
