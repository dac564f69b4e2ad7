"""The live picture of a run on a terminal: the wheel, and the statistics.

The context's statistics are read at most ten times a second, which costs hardly any time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from wheel_lock import ContextStats
from wheel_lock.cli.demo.ring import AHEAD, BEHIND, HAND, TRACK, Picture
from wheel_lock.cli.demo.run import Plan, Run, Watch
from wheel_lock.cli.demo.watch import Rates, time_left
from wheel_lock.cli.output import StatusLine, duration, number, share

_FRAME_S = 0.1
_DIAMETERS = (38, 30, 26, 22)
_LINES_BESIDES_RING = 9
_COLUMNS_BESIDES_RING = 50
_LOOK_TIMEOUT_S = 1.0
_LOG_LINES = 2


def occupancy(run: Run) -> list[int]:
    """Return the number of entries in each slot, read on the timer's thread; an empty list if that does not turn."""
    timer = run.context.timer
    found: list[int] = []
    looked = threading.Event()

    def look() -> None:
        found.extend(timer.wheel.occupancy())
        looked.set()

    timer.post(look)
    looked.wait(_LOOK_TIMEOUT_S)
    return found


class LiveWatch(Watch):
    """Draws the wheel and the statistics while the locks are held; a status line before and after that."""

    def __init__(self, console: Console, headline: str) -> None:
        self._console = console
        self._headline = headline
        self._picture = Picture()
        self._rates = Rates()
        self._line = StatusLine(sys.stdout)
        self._log: deque[str] = deque(maxlen=_LOG_LINES)

    def acquired(self, run: Run) -> None:
        if run.asked_for == run.plan.locks:
            # The first frame costs many times as much as later ones, so it is drawn before the window of measurement.
            self._console.render_lines(self._frame(run, 0.0))
        self._line.say(f"  acquired {number(run.asked_for)} of {number(run.plan.locks)} locks")

    def stage(self, what: str) -> None:
        self._line.say(f"  {what} ...")

    def log(self, line: str) -> None:
        self._log.append(line)  # shown below the picture

    def done(self) -> None:
        self._line.say("")

    def hold(self, run: Run) -> None:
        self._line.say("")
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while (held_s := run.held_s) < run.plan.seconds:
                live.update(self._frame(run, held_s), refresh=True)
                time.sleep(min(_FRAME_S, max(run.plan.seconds - run.held_s, 0.0)))

    def _frame(self, run: Run, held_s: float) -> Text:
        timer = run.context.timer
        stats = run.context.stats()
        self._rates.update(stats, timer.cpu_s())
        counts = occupancy(run)
        if counts:
            turned = (timer.clock.now() - timer.scale.origin_s) / (timer.scale.tick_s * len(counts))
            self._picture.update(counts, turned % 1.0)
        width, height = self._console.size
        diameter = next((d for d in _DIAMETERS if height >= d // 2 + _LINES_BESIDES_RING + len(self._log)), 0)
        numbers = self._numbers(run, stats)
        if not diameter or width < diameter + _COLUMNS_BESIDES_RING or self._console.no_color:
            picture = [*self._picture.strip(), Text(), *numbers]
        else:
            picture = self._picture.ring(diameter)
            above = (len(picture) - len(numbers)) // 2
            for line, beside in zip(picture[above:], numbers, strict=False):
                line.append("   ").append_text(beside)
        lines = [
            Text(),
            Text(self._headline, style="bold"),
            *(Text(line, style="dim") for line in explanation(run.plan).splitlines()),
            Text(),
            *picture,
            Text(),
            _legend(len(counts), timer.scale.tick_s),
            _elapsed(held_s, run.plan.seconds, width),
            *(Text(line, style="red") for line in self._log),
        ]
        if len(lines) >= height:
            lines = [line for line in lines if line.plain]
        # One text and no tables, which takes a fifth of the time: drawing competes with the renewals.
        frame = Text("\n ").join(lines)
        frame.no_wrap, frame.overflow = True, "ellipsis"
        return frame

    def _numbers(self, run: Run, stats: ContextStats) -> list[Text]:
        each = self._rates.renewals / self._rates.batches if self._rates.batches else None
        good, bad, plain = "bold green", "bold red", "bold"
        shown = [
            ("held", number(stats.held), f"of {number(run.plan.locks)}", good if stats.held == run.plan.locks else bad),
            ("lost", number(stats.lost), "", bad if stats.lost else good),
            ("overdue", number(stats.overdue), "not confirmed yet", "bold yellow" if stats.overdue else plain),
            ("renewals", f"{number(self._rates.renewals)}/s", f"{number(stats.renewed)} so far", plain),
            ("batches", f"{number(self._rates.batches)}/s", f"{number(each, '.1f')} renewals each", plain),
            ("lag p50", duration(stats.renewal_lag_p50_s), "from due to confirmed", plain),
            ("lag p99", duration(stats.renewal_lag_p99_s), "", plain),
            ("lag max", duration(stats.renewal_lag_max_s), "", plain),
            ("time left", time_left(stats), f"left of {run.plan.timeout_s:g} s, at worst", plain),
            ("thread", share(self._rates.cores), "of a core renews all", plain),
        ]
        return [
            Text.assemble((f"{what:<10}", "dim"), (f"{value:>9}", style), (f"  {meaning}", "dim"))
            for what, value, meaning, style in shown
        ]


def explanation(plan: Plan) -> str:
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
