"""Output of commands: text and tables on a terminal, plain lines elsewhere, JSON for programs, log messages, progress."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from wheel_lock import LossReason
from wheel_lock.runtime.notifier import NOTIFIER

_GAP = 2
_LEAST = 10  # minimum width of a column that is cut
_MESSAGES = 20  # limit of messages: a server that loses a million keys causes a million

Row = tuple[str, str, str]  # a line of a table: title, value, and explanation


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is, without colours for numbers and the like."""
    return Console(highlight=False, stderr=stderr)


def pretty(console: Console) -> bool:
    """Return whether the console is a terminal with UTF-8 and cursor control."""
    return console.file.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf")


def replaced_line(console: Console) -> Live:
    """Return a line on a terminal that the next update replaces, drawn only then; nothing elsewhere."""
    return Live(console=console, auto_refresh=False, transient=True)


def printable(text: str) -> str:
    """Return ``text`` with every character escaped that is not printable.

    >>> printable("a\\x1b[2J\\u202eb")
    'a\\\\x1b[2J\\\\u202eb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def line(text: str, stream: IO[str] | None = None) -> None:
    """Print a line at once, with escapes for what the encoding of ``stream`` does not have; by default on stdout."""
    stream = sys.stdout if stream is None else stream
    encoding = getattr(stream, "encoding", None) or "ascii"  # no stream at all if stdout is closed
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def duration(value_s: float | None) -> str:
    """Return a time with a suitable unit.

    >>> duration(0.00081), duration(0.0042), duration(1.934), duration(None)
    ('810 us', '4.2 ms', '1.93 s', '-')
    """
    if value_s is None:
        return "-"
    if value_s < 0.001:
        return f"{value_s * 1e6:.0f} us"
    return f"{value_s * 1e3:.3g} ms" if value_s < 1 else f"{value_s:.2f} s"


def number(value: float | None, form: str = ",.0f") -> str:
    """Return a number with thousands separators, or a dash if it is None."""
    return "-" if value is None else format(value, form)


def share(value: float | None) -> str:
    """Return a share of one core as a percentage, or a dash if it is None."""
    return "-" if value is None else f"{value:.1%}"


def to_json(fields: Mapping[str, object]) -> str:
    """Return ``fields`` as one line of JSON, with floats rounded to six digits."""
    return json.dumps(_rounded(dict(fields)), allow_nan=False)


def _rounded(value: object) -> object:
    """Return ``value`` with all floats in it, in dicts and lists as well, rounded to six digits."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def present(
    console: Console,
    title: str,
    table: Sequence[Row],
    sentence: str,
    colour: str,
    style: Callable[[str], str] = lambda what: "bold",
) -> None:
    """Print a table and a sentence, in a panel on a terminal: ``colour`` is green if all is well.

    Args:
        style: Returns the style of the value in the line with this title.
    """
    if not pretty(console):
        width = max([12, *(len(value) for _, value, _ in table)])
        for what, value, meaning in table:
            line(f"  {what:<12} {value:>{width}}  {meaning}".rstrip(), console.file)
        line(sentence, console.file)
        return
    grid = Table.grid(Column(style="dim"), Column(justify="right"), Column(style="dim"), padding=(0, 2))
    for what, value, meaning in table:
        grid.add_row(what, Text(value, style=style(what)), meaning)
    mark = {"green": "✔ ", "red": "✘ "}.get(colour, "")
    console.print(
        Panel(
            Group(grid, "", Text(mark + sentence, style=f"bold {colour}")),
            title=title,
            title_align="left",
            border_style=colour,
            padding=(1, 2),
            expand=False,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table with one line for each row, as wide as the terminal at most: whole columns give way before one is cut."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    gives_way: Sequence[int]  # the columns that are left out for want of room, the first one first
    is_cut: Sequence[int]  # the columns that are cut if that is not enough, the first one first
    right: Sequence[int]  # the columns that are set at the right
    styles: Sequence[str] = ()  # the style of each row; none if empty

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP, 0, 0))
        for column, width in widths.items():
            table.add_column(self.titles[column], no_wrap=True, overflow="ellipsis", width=width)
            if column in self.right:
                table.columns[-1].justify = "right"
        for cells, style in zip(self.rows, self.styles or [""] * len(self.rows), strict=True):
            table.add_row(*(Text(cells[column]) for column in widths), style=style)
        yield table

    def _widths(self, room: int) -> dict[int, int]:
        """Return the width of each column that is shown."""
        lines = [self.titles, *self.rows]
        widths = {column: max(cell_len(cells[column]) for cells in lines) for column in range(len(self.titles))}
        for column in self.gives_way:
            if _total(widths) > room:
                del widths[column]
        for column in self.is_cut:
            least = min(widths[column], _LEAST)
            widths[column] = max(widths[column] - max(_total(widths) - room, 0), least)
        return widths


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def complain(sentence: str) -> None:
    """Write one line to stderr. A closed stderr, or a pipe without a reader, does not make a command fail."""
    if sys.stderr is not None:
        try:
            print(f"wheel-lock: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            sys.stderr = None  # or the interpreter fails to flush it at its end: status 120


def discard_stdout() -> None:
    """Drop what is still to be written to stdout, or the interpreter would fail to flush it at its end: status 120."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


class Progress:
    """Progress: a bar on a terminal, drawn when it is updated, as drawing competes with what is measured; lines elsewhere.

    Args:
        quiet: True if stdout has room for the result only. The bar is on stderr then, and there are no lines.
    """

    def __init__(self, *, quiet: bool) -> None:
        shown_on = console(stderr=quiet)
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
        drawn = pretty(shown_on)
        self._bar = Bar(
            *columns,
            console=shown_on,
            auto_refresh=False,
            transient=True,
            redirect_stdout=not quiet,  # or the result would go where the bar is
            disable=not drawn,
        )
        self._task = self._bar.add_task("", total=1.0)
        self._in_lines = not quiet and not drawn

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def stage(self, what: str, share_done: float) -> None:
        """Show the name of the step that begins, and the share of the whole that is done."""
        if self._in_lines:
            print(f"{share_done:4.0%}  {what}", flush=True)
        self._bar.update(self._task, description=what, completed=share_done, refresh=True)

    def advance(self, share_done: float) -> None:
        """Show the share of the whole that is done."""
        self._bar.update(self._task, completed=share_done, refresh=True)


class _LogHandler(logging.Handler):
    def __init__(self, most: float) -> None:
        super().__init__(logging.WARNING)
        self._most = most
        self._seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        line = record.getMessage() + (f": {error!r}" if error is not None else "")
        if str(LossReason.CONTEXT_CLOSED) not in line:  # expected: the run closes the context to release the locks
            self._seen += 1
            if self._seen <= self._most:
                complain(line)

    def close(self) -> None:
        super().close()
        if self._seen > self._most:
            complain(f"and {self._seen - self._most:,} more messages")


@contextmanager
def messages(most: float = _MESSAGES) -> Iterator[None]:
    """Print the library's warnings on stderr inside the ``with`` block: the first ``most``, and how many more."""
    logger = logging.getLogger("wheel_lock")
    handler, propagate = _LogHandler(most), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        NOTIFIER.drain(1.0)
        logger.removeHandler(handler)
        logger.propagate = propagate
        handler.close()
