"""Waiting for something that another thread or process does, without a fixed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LONGEST_INTERVAL_S = 0.01  # between two calls, for what takes long: a core has other tests to run meanwhile


def eventually(
    predicate: Callable[[], T], timeout_s: float = 30.0, message: str = "", *, interval_s: float = 0.002
) -> T:
    """Call predicate until it returns something true, and return that; AssertionError after timeout_s.

    What takes long is asked for less often: interval_s is the time between the first calls.
    The last call begins when the time is up: a process that was stopped meanwhile sees what has become of it.
    An exception in predicate is not swallowed: a condition that may not be askable yet says so itself.
    """
    began = time.monotonic()
    while True:
        waited_s = time.monotonic() - began
        last = waited_s >= timeout_s
        value = predicate()
        if value:
            return value
        if last:
            what = message or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"not within {timeout_s} s: {what} (last seen: {value!r})")
        time.sleep(max(interval_s, min(waited_s / 20, LONGEST_INTERVAL_S)))


def state_of(pid: int) -> str:
    """Return the letter that /proc has for the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
