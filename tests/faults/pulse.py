"""A pulse: how long this process was kept from running, whether it was stopped or the machine had no time for it."""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType
from typing import Self

_BEAT_S = 0.005
_SHORTEST_S = 0.02  # what is shorter is part of how late any thread may be


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Pulse:
    """Beats while it is open. A beat that comes late says that no thread could run: none could tell of a loss meanwhile.

    All times are readings of the library's clock.
    """

    def __init__(self) -> None:
        self._stalls: list[tuple[float, float]] = []
        self._beat_at = _now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._beat_at = _now()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def stalls(self) -> list[tuple[float, float]]:
        """From when to when it was kept from running, each time. One that has just ended is known already."""
        before = self._beat_at  # looked up first: a beat that comes now would make the last stall disappear
        stalls = list(self._stalls)
        if _now() - before > _BEAT_S + _SHORTEST_S and (not stalls or stalls[-1][0] < before):
            stalls.append((before, _now()))
        return stalls

    def stalled_s(self, since: float = 0.0, until: float = math.inf) -> float:
        """For how long, of the time between these two, it was kept from running."""
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self.stalls())

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            before, at = self._beat_at, _now()
            if at - before > _BEAT_S + _SHORTEST_S:
                self._stalls.append((before, at))
            self._beat_at = at
