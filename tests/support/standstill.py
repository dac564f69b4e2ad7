"""When the machine has kept this process from running, so that a test can judge what it has measured by that."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self


class Standstill(NamedTuple):
    """Two readings of a clock between which nothing of a process ran."""

    since: float
    until: float


class Standstills:
    """A thread that naps as long as the block lasts, and notes when it overslept.

    Args:
        clock: What the times are measured by.
        nap_s: How long a nap is.
        late_s: By less than that any thread is late at times.
        computing: Whether a time counts in which the process computed, and only this thread did not run: where another
            keeps the interpreter for itself that is not a standstill, and an excuse only for what needs a thread.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        nap_s: float = 0.02,
        late_s: float = 0.05,
        computing: bool = False,
    ) -> None:
        self._clock = clock
        self._nap_s = nap_s
        self._late_s = late_s
        self._computing = computing
        self._noted: list[Standstill] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._nap, daemon=True)
        self._lie_down()

    def start(self) -> Self:
        self._lie_down()
        self._thread.start()
        return self

    def _lie_down(self) -> None:
        self._bed = (self._clock() + self._nap_s, time.process_time())

    def _nap(self) -> None:
        while not self._enough.wait(self._nap_s):
            self._noted += self._overslept(*self._bed)
            self._lie_down()

    def _overslept(self, due: float, computed: float) -> list[Standstill]:
        now = self._clock()
        late = now - due
        if late > self._late_s and (self._computing or time.process_time() - computed < late / 2):
            return [Standstill(due, now)]
        return []

    @property
    def seen(self) -> list[Standstill]:
        """Those so far, and the one from which the thread has still to wake up; that may be there twice."""
        bed = self._bed  # looked up first: from here on the last one cannot disappear between the two lists
        return [*self._noted, *self._overslept(*bed)]

    def stood_s(self, since: float = -math.inf, until: float = math.inf) -> float:
        """How much of the time between these two it stood still."""
        return stood(since, until, self.seen)

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


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
