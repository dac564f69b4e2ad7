"""What is shown of a run while its locks are held: nothing, a line about once a second, or a live picture on a terminal.

The context's statistics are read at most ten times a second, which costs hardly any time.
"""

from __future__ import annotations

import time
from collections import deque

from rich.live import Live
from rich.text import Text

from wheel_lock import ContextStats
from wheel_lock.cli.demo.report import Outcome
from wheel_lock.cli.demo.ring import AHEAD, BEHIND, HAND, TRACK, Picture
from wheel_lock.cli.demo.run import Run
from wheel_lock.cli.measure import of_timer
from wheel_lock.cli.output import duration, line, number, share

_RATE_OVER_S = 1.0
_FRAME_S = 0.1
_DIAMETERS = (38, 30, 26, 22)
_LINES_BESIDES_RING = 9
_COLUMNS_BESIDES_RING = 50
_LOOK_TIMEOUT_S = 1.0


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


def show_nothing(run: Run) -> None:
    """Hold the locks without output, which would compete with the timer's thread for the interpreter."""
    time.sleep(max(run.outcome.seconds - run.held_s, 0.0))


def show_lines(run: Run) -> None:
    """Hold the locks, and print a line about once a second."""
    rates, next_s = Rates(), 0.0
    while next_s < run.outcome.seconds:
        rates.update(run.context.stats(), run.context.timer.cpu_s())
        next_s = min(next_s + 1.0, run.outcome.seconds)
        time.sleep(max(next_s - run.held_s, 0.0))
        stats = run.context.stats()
        rates.update(stats, run.context.timer.cpu_s())
        line(
            f"{next_s:5.3g} s  held {number(stats.held)}  lost {number(stats.lost)}  "
            f"renewals {number(rates.renewals)}/s  lag p50 {duration(stats.renewal_lag_p50_s)}, "
            f"p99 {duration(stats.renewal_lag_p99_s)}, max {duration(stats.renewal_lag_max_s)}  "
            f"time left min {time_left(stats)}"
        )


class Screen:
    """Draws the wheel and the statistics while the locks are held."""

    def __init__(self, live: Live, run: Run, headline: str) -> None:
        self._live = live
        self._headline = headline
        self._picture = Picture()
        self._rates = Rates()
        # The first frame costs many times as much as later ones, so it is drawn before the window of measurement.
        live.console.render_lines(self._frame(run, 0.0))

    def show(self, run: Run) -> None:
        """Hold the locks, and draw."""
        while (held_s := run.held_s) < run.outcome.seconds:
            self._live.update(self._frame(run, held_s), refresh=True)
            time.sleep(min(_FRAME_S, max(run.outcome.seconds - run.held_s, 0.0)))

    def _frame(self, run: Run, held_s: float) -> Text:
        timer = run.context.timer
        stats = run.context.stats()
        self._rates.update(stats, timer.cpu_s())
        counts = of_timer(timer, timer.wheel.occupancy, _LOOK_TIMEOUT_S) or []
        if counts:
            turned = (timer.clock.now() - timer.scale.origin_s) / (timer.scale.tick_s * len(counts))
            self._picture.update(counts, turned % 1.0)
        width, height = self._live.console.size
        diameter = next((d for d in _DIAMETERS if height >= d // 2 + _LINES_BESIDES_RING), 0)
        numbers = self._numbers(run, stats)
        if not diameter or width < diameter + _COLUMNS_BESIDES_RING or self._live.console.no_color:
            picture = [*self._picture.strip(), Text(), *numbers]
        else:
            picture = self._picture.ring(diameter)
            above = (len(picture) - len(numbers)) // 2
            for line, beside in zip(picture[above:], numbers, strict=False):
                line.append("   ").append_text(beside)
        lines = [
            Text(),
            Text(self._headline, style="bold"),
            *(Text(line, style="dim") for line in explanation(run.outcome).splitlines()),
            Text(),
            *picture,
            Text(),
            _legend(len(counts), timer.scale.tick_s),
            _elapsed(held_s, run.outcome.seconds, width),
        ]
        if len(lines) >= height:
            lines = [line for line in lines if line.plain]
        # One text and no tables, which takes a fifth of the time: drawing competes with the renewals.
        frame = Text("\n ").join(lines)
        frame.no_wrap, frame.overflow = True, "ellipsis"
        return frame

    def _numbers(self, run: Run, stats: ContextStats) -> list[Text]:
        locks = run.outcome.locks
        each = self._rates.renewals / self._rates.batches if self._rates.batches else None
        good, bad, plain = "bold green", "bold red", "bold"
        shown = [
            ("held", number(stats.held), f"of {number(locks)}", good if stats.held == locks else bad),
            ("lost", number(stats.lost), "", bad if stats.lost else good),
            ("overdue", number(stats.overdue), "not confirmed yet", "bold yellow" if stats.overdue else plain),
            ("renewals", f"{number(self._rates.renewals)}/s", f"{number(stats.renewed)} so far", plain),
            ("batches", f"{number(self._rates.batches)}/s", f"{number(each, '.1f')} renewals each", plain),
            ("lag p50", duration(stats.renewal_lag_p50_s), "from due to confirmed", plain),
            ("lag p99", duration(stats.renewal_lag_p99_s), "", plain),
            ("lag max", duration(stats.renewal_lag_max_s), "", plain),
            ("time left", time_left(stats), f"left of {run.outcome.timeout_s:g} s, at worst", plain),
            ("thread", share(self._rates.cores), "of a core renews all", plain),
        ]
        return [
            Text.assemble((f"{what:<10}", "dim"), (f"{value:>9}", style), (f"  {meaning}", "dim"))
            for what, value, meaning, style in shown
        ]


def explanation(plan: Outcome) -> str:
    """Return the explanation of the picture."""
    return (
        f"Each expires {plan.timeout_s:g} s after its last renewal. What the hand reaches is renewed in\n"
        f"one batch and put back on the wheel, {plan.renew_every_s:.3g} s ahead of the hand."
    )


def _legend(slots: int, tick_s: float) -> Text:
    legend = Text()
    for mark, colour, meaning in (("▲", HAND, "now"), ("■", AHEAD, "due next"), ("■", BEHIND, "renewed")):
        legend.append(mark, colour).append(f" {meaning}   ", "dim")
    return legend.append(f"thick: many   {number(slots)} slots, {slots * tick_s:g} s a turn", "dim")


def _elapsed(held_s: float, seconds: float, width: int) -> Text:
    text = f"  {held_s:.1f} of {seconds:g} s"
    room = max(width - 2 - len(text), 1)
    full = min(round(room * held_s / seconds), room)
    return Text.assemble(("━" * full, AHEAD), ("━" * (room - full), TRACK), (text, "dim"))
