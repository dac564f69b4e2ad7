"""Plots of the benchmark suite, as SVG: the same data give the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

OURS = "wheel_lock"
_COLOURS = (
    "#b8651b",
    "#6a4c93",
    "#2e7d32",
    "#c2185b",
    "#00838f",
    "#8d6e63",
    "#5c6bc0",
    "#9e9d24",
    "#d84315",
    "#455a64",
)
_SETTINGS: Any = {
    "svg.hashsalt": "wheel_lock",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#ddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
}

Series = Mapping[str, Sequence[tuple[float, float]]]
"""Points by name, in order."""


def colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name, and for ours always the same."""
    others = [name for name in names if name != OURS]
    return {OURS: "#1769aa"} | {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(others)}


def lines(path: Path, series: Series, *, title: str, x: str, y: str, log_x: bool = True, log_y: bool = True) -> None:
    """Draw one line for each name."""
    with pyplot.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
        palette = colours(list(series))
        for name, points in series.items():
            if points:
                width = 2.5 if name == OURS else 1.5
                axes.plot(
                    *zip(*points, strict=True), "o-", color=palette[name], linewidth=width, markersize=4, label=name
                )
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,g}")
        _finish(figure, axes, path, title, x, y)


def bars(path: Path, values: Mapping[str, Mapping[str, float]], *, title: str, y: str, log_y: bool = False) -> None:
    """Draw a group of bars for each key of ``values``, and in it one for each name."""
    with pyplot.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
        names = list(dict.fromkeys(name for group in values.values() for name in group))
        palette, width = colours(names), 0.8 / max(len(names), 1)
        for index, name in enumerate(names):
            there = [(at, group[name]) for at, group in enumerate(values.values()) if name in group]
            if there:
                axes.bar(
                    [at + index * width - 0.4 + width / 2 for at, _ in there],
                    [value for _, value in there],
                    width,
                    color=palette[name],
                    label=name,
                )
        axes.set_xticks(range(len(values)), list(values))
        axes.grid(visible=False, axis="x")
        if log_y:
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
        _finish(figure, axes, path, title, "", y)


def _finish(figure: Figure, axes: Axes, path: Path, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        figure.legend(loc="outside right upper")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
