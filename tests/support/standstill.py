"""When the machine has kept this process from running, so that a test can judge what it has measured by that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

_NAP_S = 0.02
_LATE_S = 0.05  # by less any thread is late at times


class Standstill(NamedTuple):
    """Two readings of CLOCK_MONOTONIC between which nothing of a process ran."""

    since: float
    until: float


class Standstills:
    """A thread that naps as long as the block lasts, and notes when it overslept although the process did not compute."""

    def __init__(self) -> None:
        self._noted: list[Standstill] = []
        self._due = self._computed = 0.0
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._nap, daemon=True)

    def start(self) -> Self:
        self._lie_down()
        self._thread.start()
        return self

    def _lie_down(self) -> None:
        self._due, self._computed = time.monotonic() + _NAP_S, time.process_time()

    def _nap(self) -> None:
        while not self._enough.wait(_NAP_S):
            self._noted += self._overslept()
            self._lie_down()

    def _overslept(self) -> list[Standstill]:
        now = time.monotonic()
        late = now - self._due
        # A thread of this process that keeps the interpreter for itself is no standstill, and no excuse.
        if late > _LATE_S and time.process_time() - self._computed < late / 2:
            return [Standstill(self._due, now)]
        return []

    @property
    def seen(self) -> list[Standstill]:
        """Those so far, and the one from which the thread has still to wake up."""
        return [*self._noted, *self._overslept()]

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def running(since: float, until: float, standstills: Iterable[Standstill]) -> float:
    """How much of the time from `since` to `until` lies in none of them."""
    length, reached = 0.0, since
    for begin, end in sorted(standstills):
        length += max(min(begin, until) - reached, 0.0)
        reached = max(reached, end)
    return length + max(until - reached, 0.0)
