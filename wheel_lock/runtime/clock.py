"""The clock of deadlines.

CLOCK_BOOTTIME includes the time in which the machine is suspended, CLOCK_MONOTONIC does not. Leases expire on their server
all the same, so local deadlines need the former. Wall-clock steps affect neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

if hasattr(time, "CLOCK_BOOTTIME"):
    _now: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # no frame, because it is read often

else:  # pragma: no cover - Linux has it
    _now = time.monotonic


class Wakeable(Protocol):
    """The part of a loop that a clock which is moved by hand uses. All of it may be called from any thread."""

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

    def sleep_s(self, remaining_s: float) -> float | None:
        """Return the real seconds to sleep while ``remaining_s`` of this clock remain; None: until woken."""

    def attach(self, loop: Wakeable) -> None:
        """Note that ``loop`` uses this clock, and must be woken when the clock is moved by hand."""


class SystemClock:
    """CLOCK_BOOTTIME if the system has it, else ``time.monotonic``."""

    now: staticmethod[[], float] = staticmethod(_now)

    def sleep_s(self, remaining_s: float) -> float | None:
        return remaining_s  # this clock counts real time

    def attach(self, loop: Wakeable) -> None:
        pass  # a system clock is never moved by hand
