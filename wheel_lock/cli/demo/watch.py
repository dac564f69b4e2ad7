"""Plain output of a run, for pipes and scripts.

The live picture is in display.py; the report is in report.py.
"""

from __future__ import annotations

import sys
import time
from collections import deque

from wheel_lock import ContextStats
from wheel_lock.cli.demo.run import Run, Watch
from wheel_lock.cli.output import Messages, StatusLine, duration, number

_RATE_OVER_S = 1.0


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


def time_left(stats: ContextStats) -> str:
    """Return the least time left as text; a dash before the first renewal."""
    return duration(stats.renewal_time_left_min_s if stats.renewed else None)


class QuietWatch(Messages, Watch):
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


class PlainWatch(Messages, Watch):
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
                f"time left min {time_left(stats)}"
            )

    def stage(self, what: str) -> None:
        print(what, flush=True)
