"""Draws what a renewal costs against the number of locks held, from the rows of ``bench.table``.

python -m bench.renewal_cost                     # measures first: a quarter of an hour
python -m bench.renewal_cost --rows rows.json    # draws what ``bench.table --json rows.json`` has measured
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLOT = ROOT / "docs" / "renewal_cost.svg"
_UNITS = {"k": 1_000, "m": 1_000_000}
_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 150, 24, 48


class Line(NamedTuple):
    """One line of the plot."""

    side: str
    key: str
    label: str
    style: str


LINES = (
    Line("ours", "client us", "client", 'stroke="#1769aa"'),
    Line("ours", "server us", "server", 'stroke="#1769aa" stroke-dasharray="6 4"'),
    Line("rival", "client us", "client, rival", 'stroke="#b8651b"'),
    Line("rival", "server us", "server, rival", 'stroke="#b8651b" stroke-dasharray="6 4"'),
)


def held_of(row: str) -> int:
    """Return the number of locks in a row's name.

    >>> held_of("renew-10k")
    10000
    """
    text = row.rpartition("-")[2]
    return int(text[:-1]) * _UNITS[text[-1]]


def medians(records: Sequence[Mapping[str, Any]], line: Line) -> list[tuple[int, float]]:
    """Return the median of the rounds for each number of locks, in order."""
    found: dict[int, list[float]] = {}
    for record in records:
        if record["row"].startswith("renew-") and record["side"] == line.side:
            found.setdefault(held_of(record["row"]), []).append(record["values"][line.key])
    return sorted((held, statistics.median(values)) for held, values in found.items())


def plot(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the plot as SVG: both axes are logarithmic."""
    lines = [(line, medians(records, line)) for line in LINES]
    points = [point for _, some in lines for point in some]
    least_held, most_held = min(held for held, _ in points), max(held for held, _ in points)
    low = math.floor(math.log10(min(cost for _, cost in points)))
    high = math.ceil(math.log10(max(cost for _, cost in points)))

    def x(held: float) -> float:
        span = max(math.log10(most_held / least_held), 1e-9)
        return _LEFT + math.log10(held / least_held) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(cost: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log10(cost) - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="16">CPU per renewal, us; each lock is renewed every 10 s</text>',
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">locks held</text>',
    ]
    for power in range(low, high + 1):
        for factor in (1, 2, 5) if power < high else (1,):
            at = y(factor * 10.0**power)
            parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{factor * 10.0**power:g}</text>')
    for held in sorted({held for held, _ in points}):
        parts.append(f'<path d="M{x(held):.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(held):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{held:,}</text>')
    for line, some in lines:
        if some:
            path = "L".join(f"{x(held):.1f} {y(cost):.1f}" for held, cost in some)
            parts.append(f'<path d="M{path}" fill="none" stroke-width="2" {line.style}/>')
    # The labels stand beside the last points, apart from one another.
    floor = math.inf
    for line, some in sorted(((line, some) for line, some in lines if some), key=lambda each: each[1][-1][1]):
        held, cost = some[-1]
        floor = min(y(cost) + 4, floor - 15)
        parts.append(f'<text x="{x(held) + 8:.1f}" y="{floor:.1f}">{line.label}: {cost:.2g}</text>')
    return "\n".join([*parts, "</svg>", ""])


def measure(rows: Path) -> None:
    """Measure the rows into a file."""
    names = ("renew-1k", "renew-10k", "renew-100k", "renew-1m")
    subprocess.run([sys.executable, "-m", "bench.table", *names, "--json", str(rows)], cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.renewal_cost", description=__doc__)
    parser.add_argument("--rows", type=Path, metavar="FILE", help="what bench.table has measured; without it, measure")
    parser.add_argument("--plot", type=Path, metavar="FILE", default=PLOT, help=f"where to draw it ({PLOT.name})")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = given.rows or Path(folder) / "rows.json"
        if given.rows is None:
            measure(rows)
        given.plot.write_text(plot(json.loads(rows.read_text())))


if __name__ == "__main__":
    main()
