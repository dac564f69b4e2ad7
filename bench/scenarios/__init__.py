"""What the benchmark suite measures: one module for each scenario, with a ``SCENARIO``; ``python -m bench`` runs them.

To add one: a module here, and its name in ``MODULES``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.rivals import Rival

Record = dict[str, Any]
"""What was found: "rival", "case" (a dict: what the values depend on), "round", and "values"; or "failed" or "skipped", and
why, in place of the last two. Everything in it can be written as JSON."""

MODULES: tuple[str, ...] = (
    "held",
    "slack",
    "losses",
    "round_trips",
    "operations",
    "pairs",
    "handover",
    "crowd",
    "saturated",
    "churn",
    "cluster",
    "wheel",
)


@dataclass(frozen=True)
class Run:
    """How a scenario is to be measured.

    Attributes:
        rivals: The implementations, wheel_lock first. Those that the machine cannot run have been reported already.
        full: True for the numbers of the page; False for a look that takes a minute.
        tiny: True for numbers so small that only the program is tested.
        rounds: How often what is measured in turns is measured.
        cases: The cases of a scenario that are measured, by name, if not all.
    """

    rivals: Sequence[Rival]
    full: bool = False
    tiny: bool = False
    rounds: int = 3
    cases: Sequence[str] = ()

    def pick(self, full: Any, short: Any, tiny: Any) -> Any:
        """Return the one of the three that is meant."""
        return tiny if self.tiny else full if self.full else short

    def say(self, text: str) -> None:
        """Show how far it is."""
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: Its name on the command line, and of its file of results.
        title: The heading of its section of the page.
        page: The page of docs/benchmarks that has the section.
        measure: Yields the records as they are found. What a rival does wrong is a record, too.
        tables: Returns the section's text from all records, tables in Markdown included.
        draw: Draws plots into a folder, and returns for each its file name and one sentence that says what it shows.
        mode: The mode of workers that it uses: implementations that have another only take no part.
    """

    name: str
    title: str
    page: str
    measure: Callable[[Run], Iterator[Record]]
    tables: Callable[[Sequence[Record]], str]
    draw: Callable[[Sequence[Record], Path], Mapping[str, str]] = field(default=lambda records, folder: {})
    mode: str = "hold"


def load(name: str) -> Scenario:
    """Return a scenario by its module's name."""
    scenario: Scenario = import_module(f"bench.scenarios.{name}").SCENARIO
    return scenario


def found(rival: Rival, case: Mapping[str, Any], number: int, values: Mapping[str, Any]) -> Record:
    """Return the record of a round."""
    return {"rival": rival.name, "case": dict(case), "round": number, "values": dict(values)}


def failed(rival: Rival, case: Mapping[str, Any], error: object) -> Record:
    """Return the record of a rival that did not do it: an error, or that it missed a time limit."""
    return {"rival": rival.name, "case": dict(case), "failed": str(error)}


def skipped(rival: Rival, case: Mapping[str, Any], why: str) -> Record:
    """Return the record of what was not tried."""
    return {"rival": rival.name, "case": dict(case), "skipped": why}


def values_of(records: Iterable[Record], rival: str, key: str, **case: Any) -> list[float]:
    """Return a value of all rounds of a rival in a case."""
    return [
        record["values"][key]
        for record in records
        if record["rival"] == rival
        and "values" in record
        and record["values"].get(key) is not None
        and all(record["case"].get(name) == value for name, value in case.items())
    ]


def why_not(records: Iterable[Record]) -> str:
    """Return why some of the records have no values, in a few words for a table; "" if all have."""
    for record in records:
        for kind in ("failed", "skipped"):
            if kind in record:
                return f"{kind}: {' '.join(record[kind].split())}"[:60].replace("|", "/")
    return ""


def spread(values: Sequence[float]) -> str:
    """Return the median, and in brackets the least and the largest of several."""
    if not values:
        return ""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))} - {number(max(values))})"


def number(value: float) -> str:
    """Return a number with three digits or so."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"
