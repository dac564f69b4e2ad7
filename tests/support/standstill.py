"""When the machine has kept this process from running, so that a test can judge what it has measured by that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple, Self

NAP_S = 0.02
LATE_S = 0.05  # by less than that any thread is late at times


class Standstill(NamedTuple):
    """Two readings of a clock between which nothing of a process ran."""

    since: float
    until: float


class Standstills:
    """A thread that naps from start() to stop(), and notes when it overslept."""

    def __init__(self) -> None:
        self._noted: list[Standstill] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._nap, daemon=True)
        self._lie_down()

    def start(self) -> Self:
        self._lie_down()
        self._thread.start()
        return self

    def _lie_down(self) -> None:
        self._bed = (time.monotonic() + NAP_S, time.process_time())

    def _nap(self) -> None:
        while not self._enough.wait(NAP_S):
            self._noted += self._overslept(*self._bed)
            self._lie_down()

    def _overslept(self, due: float, computed: float) -> list[Standstill]:
        now = time.monotonic()
        late = now - due
        # Where the process has computed meanwhile, another of its threads has kept the interpreter: no standstill.
        if late > LATE_S and time.process_time() - computed < late / 2:
            return [Standstill(due, now)]
        return []

    @property
    def seen(self) -> list[Standstill]:
        """Those so far, and the one from which the thread has still to wake up; that may be there twice."""
        bed = self._bed  # looked up first: from here on the last one cannot disappear between the two lists
        return [*self._noted, *self._overslept(*bed)]

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()


def stood(since: float, until: float, standstills: Iterable[Standstill]) -> float:
    """How much of the time from `since` to `until` lies in one of them, or in several."""
    length, reached = 0.0, since
    for begin, end in sorted(standstills):
        length += max(min(end, until) - max(begin, reached), 0.0)
        reached = max(reached, end)
    return length


def running(since: float, until: float, standstills: Iterable[Standstill]) -> float:
    """How much of the time from `since` to `until` lies in none of them."""
    return until - since - stood(since, until, standstills)
