"""Waiting for something that another thread or process does, without a fixed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], timeout_s: float = 30.0, message: str = "", *, interval_s: float = 0.002
) -> T:
    """Call predicate until it returns something true, and return that; AssertionError after timeout_s.

    It is called once more when the time is up: a process that stands still meanwhile has missed nothing.
    An exception in predicate is not swallowed: a condition that may not be askable yet says so itself.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last = time.monotonic() >= deadline
        value = predicate()
        if value:
            return value
        if last:
            what = message or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"not within {timeout_s} s: {what} (last seen: {value!r})")
        time.sleep(interval_s)
