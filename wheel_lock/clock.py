"""What time it is: the one clock that deadlines are measured on.

CLOCK_BOOTTIME goes on while the machine is suspended, CLOCK_MONOTONIC stops; a lease goes on expiring on its server
either way, so only the former can be trusted with a local deadline. Wall-clock steps touch neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Wakeable(Protocol):
    """A loop, as a clock that is moved by hand sees it. Each of these may be called from any thread."""

    name: str

    @property
    def running(self) -> bool: ...
    @property
    def in_thread(self) -> bool: ...
    @property
    def busy(self) -> bool: ...
    def next_due_at(self) -> float | None: ...
    def post(self, call: Callable[[], object]) -> None: ...
    def wake(self) -> None: ...


class Clock(Protocol):
    """A source of time that a timer can sleep by."""

    def now(self) -> float:
        """Return the current time in seconds from an arbitrary, fixed origin."""
        ...

    def sleep_s(self, remaining_s: float) -> float | None:
        """Return how long to sleep, really, when ``remaining_s`` of this clock remain; None is until woken."""
        ...

    def attach(self, loop: Wakeable) -> None:
        """Note that ``loop`` lives by this clock and must be woken when the clock is moved by hand."""
        ...


class SystemClock:
    """CLOCK_BOOTTIME where there is one, else ``time.monotonic``."""

    def now(self) -> float:
        """Return the seconds since boot, suspension included."""
        return _now()

    def sleep_s(self, remaining_s: float) -> float | None:
        """Return ``remaining_s``: real time is what this clock counts."""
        return remaining_s

    def attach(self, loop: Wakeable) -> None:
        """Nothing to do: a system clock is never moved by hand."""


if hasattr(time, "CLOCK_BOOTTIME"):

    def _now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - Linux has it
    _now = time.monotonic
