"""The warnings that the library gives."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from wheel_lock.runtime.notifier import NOTIFIER


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """The texts of all ResourceWarnings, which the library gives on a thread of its own; elsewhere they are errors.

    What earlier tests have dropped is collected, and its warnings are given, before the record begins.
    """
    gc.collect()
    assert NOTIFIER.drain(30.0)
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = lambda message, *_: texts.append(str(message))
        yield texts
