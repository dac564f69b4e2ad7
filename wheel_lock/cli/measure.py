"""Measurements of the process and its server: what a command finds out, readings at one moment, and arithmetic on them."""

from __future__ import annotations

import math
import os
import platform
import queue
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import redis

from wheel_lock import ContextStats, HashedWheelTimer, LockContext, __version__
from wheel_lock.cli import output

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Measured(ABC):
    """What a command has measured, filled in meanwhile. None stands for unknown values.

    Attributes:
        server, redis_server: The server's address, without credentials, and its version.
        locks, timeout_s, seconds: The parameters of the command.
        lost: Leases that ended without a release while they were measured.
        left_at_server: Keys left behind at the end; they expire.
        trouble: The failure of the server, as a sentence.
        wheel_lock, python, redis_py: Versions.
    """

    server: str
    redis_server: str | None
    locks: int
    timeout_s: float
    seconds: float
    lost: int = 0
    left_at_server: int | None = None
    trouble: str | None = None
    wheel_lock: str = __version__
    python: str = field(default_factory=platform.python_version)
    redis_py: str = redis.__version__

    @property
    @abstractmethod
    def ok(self) -> bool:
        """True if everything was measured, and nothing was lost."""

    def to_json(self) -> str:
        """Return one line of JSON; unknown values are null."""
        return output.to_json({**asdict(self), "ok": self.ok})


@dataclass(frozen=True, slots=True)
class Reading:
    """The measurements at one moment."""

    at: float  # seconds of the monotonic clock
    stats: ContextStats
    wheel_cpu_s: float  # CPU time of the timer's thread so far
    server_cpu_s: float | None  # the same of the server's process; None if it is not reported


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
