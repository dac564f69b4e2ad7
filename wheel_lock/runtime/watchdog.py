"""A watchdog over the thread of a timer, kept by those that wait for it: they say so if it stands still.

Nothing of the library blocks that thread. But a finaliser of the program that runs there may, or a call of the system: then
no lock is renewed, and no loss is reported. A *look* wakes the thread, and the next one sees whether it has turned since.

A caller that waits looks after a second, an event loop every second. While the thread stands still, a caller gets
LockUnavailable at its own time limit, or after ``response_timeout``; its request is given up when the thread goes on.
Without a waiting caller, only ``health()`` says how late the thread is.
"""

from __future__ import annotations

import logging
import math
import sys
import traceback
from functools import partial

from wheel_lock.observe.log_fields import log_fields
from wheel_lock.runtime.loop import Loop
from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")

LOOK_S = 0.1  # polling interval for a thread that may stand still
STILL_S = 1.0  # a thread without progress for this time is reported


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
                _report(loop)
        loop.wake()  # cheap, and an interrupted caller may have noted a wake-up that it did not send
        return not turned


def _report(loop: Loop) -> None:
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
