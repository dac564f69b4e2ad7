"""Measurements of the process and its server at one moment, and arithmetic on them."""

from __future__ import annotations

import math
import os
import queue
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wheel_lock import ContextStats, HashedWheelTimer, LockContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """The measurements at one moment.

    Attributes:
        at: The time, in seconds of the monotonic clock.
        stats: The context's counters.
        wheel_cpu_s: CPU time of the timer's thread so far.
        server_cpu_s: CPU time of the server's process so far; None if it is not reported.
    """

    at: float
    stats: ContextStats
    wheel_cpu_s: float
    server_cpu_s: float | None


def read(context: LockContext, server_cpu_s: float | None) -> Reading:
    """Return the measurements of now; ``server_cpu_s``: the CPU time of the server."""
    return Reading(time.monotonic(), context.stats(), context.timer.cpu_s(), server_cpu_s)


def of_timer(timer: HashedWheelTimer, ask: Callable[[], T], limit_s: float) -> T | None:
    """Return what ``ask`` returns on the timer's thread; None if that does not turn within ``limit_s`` seconds."""
    answers: queue.SimpleQueue[T] = queue.SimpleQueue()
    timer.post(lambda: answers.put(ask()))
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        return None


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; its maximum so far if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def per(amount: float | None, units: float) -> float | None:
    """Return ``amount`` divided by ``units``; None if ``amount`` is None, or ``units`` not positive."""
    return None if amount is None or units <= 0 else amount / units


def finite(value: float) -> float | None:
    """Return ``value``, or None if it is infinite: nothing was measured."""
    return value if math.isfinite(value) else None
