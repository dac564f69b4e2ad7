"""Plain output of a run, for pipes and scripts, and the library's log messages.

The live picture is in display.py; the report is in report.py.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from wheel_lock import ContextStats, LossReason
from wheel_lock.cli.report import duration, number
from wheel_lock.cli.run import Run
from wheel_lock.runtime.notifier import NOTIFIER

_RATE_OVER_S = 1.0
_MESSAGES = 20  # a server that loses a million keys causes a million messages


class Rates:
    """Renewals, script calls and CPU time per second, over about the last second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int, float]] = deque()
        self.renewals: float = 0.0
        self.batches: float = 0.0
        self.cores: float = 0.0

    def update(self, stats: ContextStats, cpu_s: float) -> None:
        """Add a sample: statistics, and CPU seconds of the timer's thread."""
        now = time.monotonic()
        self._seen.append((now, stats.renewed, stats.batches, cpu_s))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_OVER_S:
            self._seen.popleft()
        then, renewed, batches, cpu_before = self._seen[0]
        if (time_s := now - then) > 0:
            self.renewals = (stats.renewed - renewed) / time_s
            self.batches = (stats.batches - batches) / time_s
            self.cores = (cpu_s - cpu_before) / time_s


def slack(stats: ContextStats) -> str:
    """Return the least slack as text; a dash before the first renewal."""
    return duration(stats.renewal_slack_min_s if stats.renewed else None)


class StatusLine:
    """A line on a terminal that ``say`` replaces; omitted elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = stream.isatty()

    def say(self, text: str) -> None:
        if self._shown:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()


class Messages:
    """A base of watches that prints log messages on stderr: the first 20, and the number of the others."""

    def __init__(self) -> None:
        self._seen = 0

    def log(self, line: str) -> None:
        self._seen += 1
        if self._seen <= _MESSAGES:
            print(f"wheel-lock: {line}", file=sys.stderr)

    def done(self) -> None:
        if self._seen > _MESSAGES:
            print(f"wheel-lock: and {self._seen - _MESSAGES:,} more messages", file=sys.stderr)


class QuietWatch(Messages):
    """For scripts: at most a status line on stderr, and sleep while the locks are held."""

    def __init__(self) -> None:
        super().__init__()
        self._line = StatusLine(sys.stderr)

    def acquired(self, run: Run) -> None:
        self._line.say(f"acquired {number(run.asked_for)} of {number(run.plan.locks)} locks")

    def hold(self, run: Run) -> None:
        # No output, which would compete with the timer's thread for the interpreter.
        self._line.say(f"holding {number(run.acquired)} locks for {run.plan.seconds:g} s")
        time.sleep(max(run.plan.seconds - run.held_s, 0.0))

    def stage(self, what: str) -> None:
        self._line.say(what)

    def log(self, line: str) -> None:
        self._line.say("")
        super().log(line)

    def done(self) -> None:
        self._line.say("")
        super().done()


class PlainWatch(Messages):
    """Prints a line about once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._rates = Rates()

    def acquired(self, run: Run) -> None:
        self.stage(f"acquired {number(run.asked_for)} of {number(run.plan.locks)} locks")

    def hold(self, run: Run) -> None:
        next_s = 0.0
        while next_s < run.plan.seconds:
            self._rates.update(run.context.stats(), run.context.timer.cpu_s())
            next_s = min(next_s + 1.0, run.plan.seconds)
            time.sleep(max(next_s - run.held_s, 0.0))
            stats = run.context.stats()
            self._rates.update(stats, run.context.timer.cpu_s())
            self.stage(
                f"{next_s:5.3g} s  held {number(stats.held)}  lost {number(stats.lost)}  "
                f"renewals {number(self._rates.renewals)}/s  lag p50 {duration(stats.renewal_lag_p50_s)}, "
                f"p99 {duration(stats.renewal_lag_p99_s)}, max {duration(stats.renewal_lag_max_s)}  "
                f"slack min {slack(stats)}"
            )

    def stage(self, what: str) -> None:
        print(what, flush=True)


class Log(Protocol):
    """A place for the library's log messages."""

    def log(self, line: str) -> None:
        """Show a message."""


class _LogHandler(logging.Handler):
    def __init__(self, watch: Log) -> None:
        super().__init__(logging.WARNING)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        line = record.getMessage() + (f": {error!r}" if error is not None else "")
        if str(LossReason.CONTEXT_CLOSED) not in line:  # expected: the run closes the context to release the locks
            self._watch.log(line)


@contextmanager
def logged_to(watch: Log) -> Iterator[None]:
    """Pass the library's warnings to ``watch`` instead of the log handlers, inside the ``with`` block."""
    logger = logging.getLogger("wheel_lock")
    handler, propagate = _LogHandler(watch), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        NOTIFIER.drain(1.0)
        logger.removeHandler(handler)
        logger.propagate = propagate
