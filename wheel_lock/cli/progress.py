"""The progress of a benchmark: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from wheel_lock.cli.report import pretty
from wheel_lock.cli.watch import Messages


class LinesWatch(Messages):
    """Prints a line for each step, or nothing if ``quiet``."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__()
        self._quiet = quiet

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()

    def stage(self, what: str, share_done: float) -> None:
        if not self._quiet:
            print(f"{share_done:4.0%}  {what}", flush=True)

    def advance(self, share_done: float) -> None:
        pass


class BarWatch(LinesWatch):
    """Draws a progress bar, a few times a second at most: drawing competes with what is measured."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=1.0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def stage(self, what: str, share_done: float) -> None:
        self._progress.update(self._task, description=what, completed=share_done, refresh=True)

    def advance(self, share_done: float) -> None:
        self._progress.update(self._task, completed=share_done, refresh=True)

    def done(self) -> None:
        self._progress.stop()
        super().done()


def watch_for(console: Console, *, quiet: bool) -> LinesWatch:
    """Return the watch that suits ``console``; ``quiet``: whether there is no output without a terminal."""
    return BarWatch(console) if pretty(console) else LinesWatch(quiet)
