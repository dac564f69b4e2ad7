"""A watchdog over the thread of a timer, kept by those that wait for it: they say so if it stands still.

Nothing of the library blocks that thread. But a finaliser of the program that runs there may, or a call of the system: then
no lock is renewed, and no loss is reported. A *look* wakes the thread, and the next one sees whether it has turned since.

A caller that waits looks after a second, an event loop every second. While the thread stands still, a caller gets
LockUnavailable at its own time limit, or after ``response_timeout``; its request is given up when the thread goes on.
Without a waiting caller, only ``health()`` says how late the thread is.

A warning names a callback that delays others on a notifier's thread, while it still runs.
"""

from __future__ import annotations

import logging
import math
import reprlib
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from wheel_lock.observe.log_fields import log_fields
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.loop import Loop
from wheel_lock.runtime.notifier import NOTIFIER, Notifier

logger: logging.Logger = logging.getLogger("wheel_lock")

LOOK_S = 0.1  # polling interval for a thread that may stand still
STILL_S = 1.0  # a thread without progress for this time is reported
SLOW_S = 1.0
_SHOWN = reprlib.Repr()  # an argument may be a list of all leases that were lost together
_SHOWN.maxstring = _SHOWN.maxother = 120
_REPORTS = Notifier()  # a separate one: the notifier of the process may be the one that is blocked


class Watchdog:
    """The looks of one waiting caller, or of one event loop, at a timer's thread.

    Only time in which other threads ran counts: if a look comes late, the process was stopped, the machine suspended, or
    the interpreter kept by one call, and the timer's thread could not turn either.
    """

    __slots__ = ("_looked_at", "_loop", "_turns", "still_s")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._turns = -1
        self._looked_at = -math.inf
        self.still_s: float = 0.0  # for which the thread has not turned although others ran

    @property
    def standstill(self) -> bool:
        """True if the thread stands still, which has been logged."""
        return self.still_s >= STILL_S

    def look(self, now: float) -> bool:
        """Look at the thread, wake it, and log a standstill; ``now`` is that of ``time.monotonic``.

        Returns:
            True if it has not turned since the last look: the next one comes after ``LOOK_S``.
        """
        loop, since_s = self._loop, now - self._looked_at
        self._looked_at = now
        turned = loop.turns != self._turns or not loop.running
        if turned:
            self._turns, self.still_s = loop.turns, 0.0
        elif since_s < 2 * LOOK_S:
            known_s = STILL_S if loop.reported_turn == self._turns else 0.0
            self.still_s = max(self.still_s + since_s, known_s)
            if self.standstill:
                _report_standstill(loop)
        loop.wake()  # cheap, and an interrupted caller may have noted a wake-up that it did not send
        return not turned


def _report_standstill(loop: Loop) -> None:
    """Log the standstill of a timer's thread, once, with its stack."""
    turns, thread = loop.turns, loop.thread
    if thread is None or loop.reported_turn == turns:
        return
    loop.reported_turn = turns  # no call since it was read, so that one caller reports
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "it has not begun\n"
    log = partial(logger.critical, extra=log_fields("standstill", reason=stack))
    text = "the thread %s has not turned for %.0f s: no lock is renewed, and no loss reported, until this returns\n%s"
    NOTIFIER.post(log, text, loop.name, STILL_S, stack)


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
                _REPORTS.post(_report_call, call, arguments, took_s)
            else:
                next_s -= took_s
        # A tick later, because an alarm may ring up to a tick early.
        self._alarm = self._loop.call_at(now + next_s + self._loop.scale.tick_s, self._look)


def _report_call(call: Callable[..., object], arguments: tuple[object, ...], took_s: float) -> None:
    """Log a slow callback. On a notifier's thread."""
    shown, name = ", ".join(map(_SHOWN.repr, arguments)), getattr(call, "__qualname__", None)
    what = repr(call) if name is None else f"{getattr(call, '__module__', None)}.{name}"
    text = "the callback %s(%s) runs for %.1f s already, and those behind it wait"
    logger.warning(text, what, shown, took_s, extra=log_fields("slow_callback"))
