"""Slow callbacks: a warning names a callback that delays others, while it still runs."""

from __future__ import annotations

import logging
import reprlib
import time
from collections.abc import Callable

from wheel_lock.observe.log_fields import log_fields
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.loop import Loop
from wheel_lock.runtime.notifier import Notifier

logger: logging.Logger = logging.getLogger("wheel_lock")

SLOW_S = 1.0
_SHOWN = reprlib.Repr()  # an argument may be a list of all leases that were lost together
_SHOWN.maxstring = _SHOWN.maxother = 120
_REPORTS = Notifier()  # a separate one: the notifier of the process may be the one that is blocked


class SlowCalls:
    """Checks one notifier periodically while it is busy, by the wheel of a loop. Timer's thread only."""

    def __init__(self, loop: Loop, notifier: Notifier) -> None:
        self._loop = loop
        self._notifier = notifier
        self._alarm: Alarm | None = None

    def look_later(self) -> None:
        """Schedule a check after a call has been posted, unless one is scheduled."""
        if self._alarm is None or self._alarm not in self._loop.wheel:
            self._alarm = self._loop.call_at(self._loop.now + SLOW_S, self._look)

    def _look(self, now: float) -> None:
        next_s, running = SLOW_S, self._notifier.running
        if running is None or running is not self._notifier.reported:
            self._notifier.reported = None  # a call that is over is not kept
        if not self._notifier.busy:
            return
        if running is None:
            self._notifier.ensure_started()
        elif running is not self._notifier.reported:
            call, arguments, since = running
            took_s = time.monotonic() - since  # real time, whatever the timer's clock
            if took_s >= SLOW_S:
                self._notifier.reported = running
                _REPORTS.post(_report, call, arguments, took_s)
            else:
                next_s -= took_s
        # A tick later, because an alarm may ring up to a tick early.
        self._alarm = self._loop.call_at(now + next_s + self._loop.scale.tick_s, self._look)


def _described(call: Callable[..., object]) -> str:
    name = getattr(call, "__qualname__", None)
    return repr(call) if name is None else f"{getattr(call, '__module__', None)}.{name}"


def _report(call: Callable[..., object], arguments: tuple[object, ...], took_s: float) -> None:
    """Log a slow callback. On a notifier's thread."""
    shown = ", ".join(map(_SHOWN.repr, arguments))
    text = "the callback %s(%s) runs for %.1f s already, and those behind it wait"
    logger.warning(text, _described(call), shown, took_s, extra=log_fields("slow_callback"))
