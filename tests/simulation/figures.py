"""The figures of docs/safety.md: `python -m tests.simulation.figures` after `make simulate` and `make mutants`.

They are kept in docs/safety.json, from which the tables of the page are made: tests/site checks that both agree. What
build/ has of a newer run takes the place of what is there; a run that found a violation is refused.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from bench.page import markdown, write
from tests.simulation.mutants.__main__ import OUTCOMES, known_survivors, outcome
from tests.simulation.record import ALWAYS, RULES

_ROOT = Path(__file__).parents[2]
_FIGURES = _ROOT / "docs" / "safety.json"
PAGE = _ROOT / "docs" / "safety.md"
_DAY_S = 86_400.0
_YEAR_S = 365.25 * _DAY_S
_NOT_BY_OPERATORS = ("by hand", "old bug")


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def renewed(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with those of newer runs."""
    build = _ROOT / "build"
    if (run := build / "simulation.json").exists():
        report = json.loads(run.read_text())
        if report["failed"] is not None:
            raise SystemExit(f"seed {report['failed']} breaks a rule: there is nothing to publish")
        rules = [[rule, text, report["exercised"].get(rule, 0)] for rule, text in RULES.items()]
        figures["histories"] = {"commit": _commit(), **report, "rules": rules}
    if (run := build / "mutants.json").exists():
        results = json.loads(run.read_text())["verdicts"]
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        survivors = []
        for _, result in sorted(results.items()):
            operator, path = result["operator"], result["path"]
            found, kind, reason = outcome(result, known_survivors())
            counts[operator][found] += 1
            if operator not in _NOT_BY_OPERATORS:
                counts[f"{path.rpartition('/')[0]}/" if "/" in path else path][found] += 1
            if kind:
                survivors.append([result["key"], kind, reason])
        figures["mutants"] = {"counts": counts, "survivors": survivors}
    return figures


def tables(figures: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by their markers."""
    histories, mutants = figures["histories"], figures["mutants"]
    simulated_s = histories["simulated_s"]
    time = f"{simulated_s / _YEAR_S:.1f} years" if simulated_s > _YEAR_S else f"{simulated_s / _DAY_S:.2f} days"
    return {
        "histories": markdown(
            ("figure", "value"),
            [
                ("histories", f"{histories['histories']:,}"),
                ("runs, each from a seed that was drawn", f"{len(histories['seeds'])}"),
                ("histories that broke a rule", "0"),
                ("simulated time", time),
                ("actions of users and faults", f"{histories['steps']:,}"),
                ("faults", f"{sum(histories['faults'].values()):,}"),
                ("commit", f"`{histories['commit']}`"),
            ],
        ),
        "faults": markdown(
            ("fault", "times"), [(name, f"{number:,}") for name, number in sorted(histories["faults"].items())]
        ),
        "rules": markdown(
            ("rule", "says", "times it had a chance"),
            [(rule, text, "always" if rule in ALWAYS else f"{times:,}") for rule, text, times in histories["rules"]],
        ),
        "mutants": markdown(("made by, or in", "number", *OUTCOMES, "found"), list(_score(mutants["counts"]))),
        "survivors": "\n".join(_survivors(mutants["survivors"])),
    }


def _score(counts: dict[str, dict[str, int]]) -> list[tuple[str, ...]]:
    operators = [name for name in counts if "/" not in name and not name.endswith(".py")]
    rows = [(name, Counter(counts[name])) for name in _NOT_BY_OPERATORS if name in counts]
    by_operators = [(name, Counter(counts[name])) for name in sorted(operators) if name not in _NOT_BY_OPERATORS]
    together = sum((count for _, count in by_operators), Counter[str]())
    rows += [("**by operators**", together), *by_operators]
    rows += [(f"`{name}`", Counter(count)) for name, count in sorted(counts.items()) if name not in operators]
    lines = []
    for name, count in rows:
        found, real = count["simulation"] + count["tests"], count.total() - count["harmless"]
        share = f"{found / real:.0%}" if real else ""
        lines.append((name, str(count.total()), *(str(count[outcome]) for outcome in OUTCOMES), share))
    return lines


def _survivors(survivors: list[list[str]]) -> list[str]:
    lines = []
    for kind in sorted({kind for _, kind, _ in survivors}):
        some = sorted((key, reason) for key, each, reason in survivors if each == kind)
        lines += [f"**{kind}** ({len(some)})", ""]
        lines += [f"* `{key}`{': ' if reason else ''}{reason}" for key, reason in some]
        lines.append("")
    return lines[:-1] or ["None."]


def main() -> None:
    figures = renewed(json.loads(_FIGURES.read_text()) if _FIGURES.exists() else {})
    _FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    for marker, text in tables(figures).items():
        write(PAGE, marker, text)


def kept() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(_FIGURES.read_text())
    return figures


if __name__ == "__main__":
    main()
