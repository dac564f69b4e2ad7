"""What the tests of faults share: a context of a test's own, and its warnings."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.redis_server import RedisServer
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.runtime.notifier import NOTIFIER


@contextmanager
def own_context(server: RedisServer | str, **options: Any) -> Iterator[LockContext]:
    """A context with a timer, and so a thread, of its own."""
    timer = HashedWheelTimer()
    url = server if isinstance(server, str) else server.url
    context = LockContext.from_url(url, timer=timer, **options)
    try:
        yield context
    finally:
        context.close(2.0)
        timer.stop()


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
