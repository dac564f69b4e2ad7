"""The benchmark suite: what it costs to keep locks alive, with wheel_lock and with what else there is.

Each implementation works in a process of its own with a redis-server of its own on loopback. Raw results go to
bench/results/*.json; what is measured now replaces what these files have of the same rivals. ``--write`` puts tables and
plots of all results into docs/benchmarks, and the most important figures into docs/performance.md; with ``--draw`` nothing
is measured before.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import page, summary
from bench.rivals import Rival, in_python, peers, timers
from bench.scenarios import MODULES, Record, Run, Scenario, load, skipped
from bench.workers import ROOT

RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"


def ready(rivals: Sequence[Rival]) -> tuple[list[Rival], list[tuple[Rival, str]]]:
    """Build what has to be built; return what can run, and what cannot, with the reason."""
    able, unable = [], []
    for rival in rivals:
        why = rival.missing()
        if why is None:
            try:
                rival.build()
            except Exception as error:
                why = f"not built: {error}"
        if why is None:
            able.append(rival)
        else:
            unable.append((rival, " ".join(why.split())))
            print(f"{rival.name}: skipped: {why}", file=sys.stderr, flush=True)
    return able, unable


def measure(scenario: Scenario, run: Run, unable: Sequence[tuple[Rival, str]], path: Path) -> None:
    """Measure a scenario into its file; ``unable`` says why some implementations cannot take part."""
    records = [skipped(rival, {}, why) for rival, why in unable if scenario.mode in rival.modes]
    began = time.monotonic()
    measured = scenario.measure(run)
    try:
        for record in measured:
            records.append(record)
            if "failed" in record:
                print(f"{scenario.name}: {record['rival']}: {record['failed']}", file=sys.stderr, flush=True)
    finally:
        measured.close()  # type: ignore[attr-defined]  # a generator: it ends what it has started
        save(path, run, records, time.monotonic() - began)


def save(path: Path, run: Run, records: Sequence[Record], took_s: float) -> None:
    """Write records, and keep those of rivals and cases that were not measured now."""
    measured = {record["rival"] for record in records}
    document = read(path)
    kept = [
        record
        for record in document["records"]
        if record["rival"] not in measured or (run.cases and record["case"].get("case", run.cases[0]) not in run.cases)
    ]
    runs = [
        one
        for one in document["runs"]
        if set(one["rivals"]) - measured or (run.cases and one.get("cases") != list(run.cases))
    ]
    runs.append({"machine": page.machine(), "full": run.full, "rivals": sorted(measured), "seconds": round(took_s)})
    if run.cases:
        runs[-1]["cases"] = list(run.cases)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(record) for record in [*kept, *records])
    path.write_text(f'{{"runs": {json.dumps(runs, indent=1)},\n"records": [\n{lines}\n]}}\n')


def read(path: Path) -> dict[str, Any]:
    """Return the results in a file, none if there is no such file."""
    if not path.exists():
        return {"runs": [], "records": []}
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def text_of(scenario: Scenario, records: Sequence[Record]) -> str:
    """Return the text of a section, with what could not take part below its tables."""
    absent = [record for record in records if not record["case"]]
    there = [record for record in records if record["case"]]
    lines = [f"* {record['rival']}: skipped: {record['skipped']}" for record in absent]
    return "\n".join([scenario.tables(there), *(["", *lines] if lines else [])])


def draw(scenarios: Sequence[Scenario], results: Path, docs: Path) -> None:
    """Write the tables and plots of all results into the pages."""
    plots = docs / "plots"
    plots.mkdir(exist_ok=True)
    for scenario in scenarios:
        document = read(results / f"{scenario.name}.json")
        if document["records"]:
            text = [f"## {scenario.title}", ""]
            there = [record for record in document["records"] if record["case"]]
            for name, sentence in scenario.draw(there, plots).items():
                text += [f"![{sentence}](../plots/{name})", "", sentence, ""]
            text.append(text_of(scenario, document["records"]))
            text += ["", *sorted({one["machine"] for one in document["runs"]})]
            page.write(docs / "benchmarks" / f"{scenario.page}.md", scenario.name, "\n".join(text))
    page.write(
        docs / "performance.md", "summary", summary.table(lambda name: read(results / f"{name}.json")["records"])
    )


def main() -> int:
    given = _arguments()
    names = given.scenarios or list(MODULES)
    if unknown := [name for name in names if name not in MODULES]:
        print(f"there is no scenario {unknown[0]}; there are {' '.join(MODULES)}", file=sys.stderr)
        return 2
    scenarios = [load(name) for name in names]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends everything in order, as Ctrl-C does
    try:
        if not given.draw:
            known = [*in_python(), *timers(), *(peers() if given.peers else ())]
            rivals, unable = ready([rival for rival in known if not given.rivals or rival.name in given.rivals])
            for scenario in scenarios:
                able = [rival for rival in rivals if scenario.mode in rival.modes]
                rounds = given.rounds or (5 if given.full else 3)
                run = Run(able, full=given.full, tiny=given.tiny, rounds=rounds, cases=given.cases)
                measure(scenario, run, unable, given.results / f"{scenario.name}.json")
        for scenario in scenarios:
            records = read(given.results / f"{scenario.name}.json")["records"]
            print(f"\n{scenario.title}\n\n{text_of(scenario, records)}" if records else "", flush=True)
        if given.write:
            draw(scenarios, given.results, DOCS)
    except KeyboardInterrupt:
        return 130
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"all by default: {' '.join(MODULES)}")
    parser.add_argument("--peers", action="store_true", help="also what needs a JDK, Go or Node")
    parser.add_argument("--rivals", nargs="+", metavar="NAME", help="only these implementations")
    parser.add_argument(
        "--cases", nargs="+", metavar="NAME", default=(), help="of losses: only these, by the page's names"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="the numbers of the page: more than an hour")
    size.add_argument("--tiny", action="store_true", help="numbers that only show that the programs run")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of what is measured in turns")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the results are")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument(
        "--write",
        action="store_true",
        help="put tables and plots of all results into docs/performance.md and docs/benchmarks",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
