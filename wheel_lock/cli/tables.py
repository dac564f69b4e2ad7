"""Tables that fit the terminal: whole columns give way before a name is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2
_LEAST = 10  # minimum width of a column that is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table with one line for each row, as wide as the terminal at most."""

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
