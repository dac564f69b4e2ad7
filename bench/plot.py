"""Plots of the benchmark suite, as SVG: the same data give the same file. matplotlib is imported by the first one."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS = "wheel_lock"
LIMIT = "limit: redis-benchmark (C)"
"""What no implementation can be better than; drawn dashed."""
_COLOURS = {
    OURS: "#1769aa",
    "wheel_lock, fair": "#6ea8d8",
    "redis-py, Lock": "#b8651b",
    "redis-py, pipeline": "#d98c3f",
    "redis-py, loop": "#8c4a0f",
    "redis-py, thread each": "#e0b080",
    "redis-py, bare minimum": "#a0743c",
    "python-redis-lock": "#c2185b",
    "pottery": "#6a4c93",
    "Redisson (Java)": "#2e7d32",
    "rueidislock (Go)": "#00838f",
    "redsync (Go)": "#5c6bc0",
    "bsm/redislock (Go)": "#26a69a",
    "node-redlock (Node)": "#9e9d24",
}
"""The colour of each implementation, the same in all plots."""
_OTHERS = ("#455a64", "#8d6e63", "#d84315", "#7b1fa2", "#607d8b", "#afb42b")
_MARKS = ("o", "s", "^", "D", "v", "P")
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
    """Return a colour for each name."""
    others = [name for name in names if name not in _COLOURS]
    return _COLOURS | {name: _OTHERS[index % len(_OTHERS)] for index, name in enumerate(others)}


def lines(path: Path, series: Series, *, title: str, x: str, y: str, log_x: bool = True, log_y: bool = True) -> None:
    """Draw one line for each name, of something of which less is better."""
    with _axes(4.8) as (figure, axes):
        palette = colours(list(series))
        for name, points in series.items():
            if points:
                width = 2.5 if name == OURS else 1.5
                style = "--" if name == LIMIT else "o-"
                axes.plot(
                    *zip(*points, strict=True), style, color=palette[name], linewidth=width, markersize=4, label=name
                )
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.7g}")  # no 1e+06
        if log_y:
            axes.yaxis.set_minor_formatter(_short_axis())
        _finish(figure, axes, path, title, x, f"{y} (less is better)")


def bars(
    path: Path, values: Mapping[str, Mapping[str, float]], *, title: str, y: str, better: str, log_y: bool = False
) -> None:
    """Draw a group of bars for each key of ``values``, and in it one for each name; ``better`` is "less" or "more"."""
    with _axes(4.8) as (figure, axes):
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
        width = max(60 // max(len(values), 1), 9)
        axes.set_xticks(
            range(len(values)),
            [
                textwrap.fill(" ".join(name.replace("(", " (").split()), width, break_long_words=False)
                for name in values
            ],
        )
        axes.grid(visible=False, axis="x")
        if log_y:
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.7g}")  # no 1e+06
        if log_y:
            axes.yaxis.set_minor_formatter(_short_axis())
        _finish(figure, axes, path, title, "", f"{y} ({better} is better)")


def strip(path: Path, values: Mapping[str, Mapping[str, float]], *, title: str, x: str, edge: str) -> None:
    """Draw a row for each name, and in it one mark for each key of ``values``.

    The axis is logarithmic to both sides of 0; what is infinite stands at the right edge, over the word ``edge``.
    """
    names = list(dict.fromkeys(name for group in values.values() for name in group))
    with _axes(2.0 + 0.42 * len(names)) as (figure, axes):
        largest = max(
            1.0, *(abs(value) for group in values.values() for value in group.values() if math.isfinite(value))
        )
        outside, step = largest * 12, 0.7 / max(len(values), 1)
        for index, (key, group) in enumerate(values.items()):
            axes.plot(
                [value if math.isfinite(value) else outside for value in group.values()],
                [names.index(name) + (index - (len(values) - 1) / 2) * step for name in group],
                linestyle="",
                marker=_MARKS[index % len(_MARKS)],
                color=_OTHERS[index % len(_OTHERS)],
                markersize=5,
                label=key,
            )
        axes.set_xscale("symlog", linthresh=0.01)
        axes.set_xlim(-largest * 2, outside * 2.5)
        powers = [10.0**power for power in range(-2, math.ceil(math.log10(largest)) + 1)]
        ticks = [tick for tick in (*(-power for power in reversed(powers)), 0.0, *powers) if abs(tick) <= largest * 1.2]
        axes.set_xticks([*ticks, outside], [*(f"{tick:,g}" for tick in ticks), edge])
        axes.minorticks_off()
        axes.axvline(0.0, color="#222", linewidth=1.2)
        axes.axvspan(largest * 5, outside * 2.5, color="#eee", linewidth=0)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        for between in range(1, len(names)):
            axes.axhline(between - 0.5, color="#ddd", linewidth=0.8)
        _finish(figure, axes, path, title, x, "")


@contextmanager
def _axes(height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure of so many inches, which is closed at the end."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(figsize=(6.4, height), layout="constrained")
        yield figure, axes
        pyplot.close(figure)


def _short_axis() -> Any:
    """Return what labels the minor ticks of a short axis, without powers."""
    from matplotlib.ticker import LogFormatter

    return LogFormatter(minor_thresholds=(1, 0.4))


def _finish(figure: Figure, axes: Axes, path: Path, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        figure.legend(loc="outside lower center", ncols=3, fontsize="small", columnspacing=1.2, handlelength=1.5)
    figure.savefig(path, metadata={"Date": None})
