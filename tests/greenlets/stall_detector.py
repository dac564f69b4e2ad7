"""An OS thread beside a scene: it records whether the machine has let any thread of this process run.

It is made of what the standard library is before anything is patched, so this is imported first. It shares nothing with
the library but the interpreter: what keeps the one thread waiting, a lock or a patched function, does not hold it up.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import start_new_thread
from collections import deque
from time import monotonic, sleep
from types import TracebackType
from typing import Self

BUSY = 75  # exit status of a program that was starved; the machine may do better the next time

_STRETCH_S = 0.39  # the rest of a lock of 0.6 s when its renewal is due
_NAP_S = 0.01
_LIMIT_S = 2.0
RENEWS = 8  # naps in a stretch: a renewal takes the interpreter five or six times, as each nap does once
ENDS = 20  # half of the naps on an idle machine
RECONNECTS = 13  # making a connection takes it some twenty times more, and has a second


class StallDetector:
    """Naps, and notes when it woke, as long as the block lasts.

    Where the block fails, a lock was lost because its renewal was not confirmed in time, and this thread was kept from
    running as well, the program ends with the status BUSY. A lock that is lost while this thread runs is a failure.

    Args:
        naps: How many it takes at least in each stretch of time in which a renewal has to succeed.
    """

    def __init__(self, naps: int = RENEWS) -> None:
        self._woken_at = deque([monotonic()], maxlen=naps + 1)
        self._on = True
        self._starved = False
        start_new_thread(self._nap, ())

    def _nap(self) -> None:
        while self._on:
            sleep(_NAP_S)
            self._note()

    def _note(self) -> None:
        woken_at = self._woken_at
        woken_at.append(monotonic())
        if woken_at[-1] - woken_at[0] > _STRETCH_S:  # so long for so many naps, or for fewer at the beginning
            self._starved = True

    @property
    def starved(self) -> bool:
        """Whether it has been kept from running."""
        self._note()  # it may sleep still
        return self._starved

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        starved, self._on = self.starved, False
        if isinstance(error, Exception) and starved and _lost_in_time():
            print(
                f"the machine has kept every thread of this process from running: {error!r}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(BUSY)


def _lost_in_time() -> bool:
    """Whether a lock was lost because nothing was heard of its renewal. The engine may not have counted it yet."""
    from wheel_lock import LossReason
    from wheel_lock.engine.engine import ENGINES

    until = monotonic() + _LIMIT_S
    while not any(engine.counters.lost[LossReason.NOT_CONFIRMED] for engine in ENGINES):
        if monotonic() > until:
            return False
        time.sleep(_NAP_S)  # as it is by now: the engine may be a green thread
    return True
