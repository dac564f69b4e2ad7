"""What the library logs, in order, and on which threads: INFO and above."""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from wheel_lock.runtime.notifier import NOTIFIER

_LIMIT_S = 10.0


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: list[tuple[str, str]] = []
        self.threads: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.threads.add(threading.current_thread().name)
        self._lines.append((record.levelname, record.getMessage()))

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Level and text of each line, those included that are on their way."""
        assert NOTIFIER.drain(_LIMIT_S)
        return list(self._lines)

    @property
    def levels(self) -> list[str]:
        return [level for level, _ in self.lines]

    def said(self, text: str) -> list[str]:
        return [line for _, line in self.lines if text in line]


@contextmanager
def logged() -> Iterator[Log]:
    assert NOTIFIER.drain(_LIMIT_S)  # of what others have left to be logged
    log, logger = Log(), logging.getLogger("wheel_lock")
    before = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        yield log
    finally:
        logger.removeHandler(log)
        logger.setLevel(before)


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
