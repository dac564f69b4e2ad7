"""Real time, but for what a stopped process has missed: a time limit runs out while the process runs, or not at all."""

from __future__ import annotations

import threading
import time

from wheel_lock.runtime.clock import Wakeable

_GLANCE_S = 0.005  # interval at which a running process reads it
_MOST_S = 0.02  # a longer gap between two readings means that the process did not run


class SteadyClock:
    """A clock for time limits that are short, and must not be reached because the process was kept from running.

    Keys at a server expire in real time. So it is none for leases whose end a test waits for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 1000.0
        self._looked_at = time.monotonic()

    def now(self) -> float:
        with self._lock:
            looked_at = time.monotonic()
            self._now += min(looked_at - self._looked_at, _MOST_S)
            self._looked_at = looked_at
            return self._now

    def sleep_s(self, remaining_s: float) -> float | None:
        return min(remaining_s, _GLANCE_S)

    def attach(self, loop: Wakeable) -> None:
        """Nothing to do: it is never moved by hand."""
