"""Fixtures for tests with pytest, of programs that use locks: no server, no sleep.

A project switches them on in its ``conftest.py``: ``pytest_plugins = ["wheel_lock.pytest_plugin"]``. They need the extra
``testing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.testing import FakeContext, ManualClock, fake_context

_CALLBACKS_S = 10.0  # real seconds within which callbacks have returned; a longer one is not awaited


@pytest.fixture
def lock_clock() -> ManualClock:
    """A clock that stands still until ``lock_clock.advance(seconds)``; ``fake_lock_context`` of that test goes by it.

    The limit of a wait does, too: a call that waits for another holder ends when another thread advances the clock.
    """
    return ManualClock()


@pytest.fixture
def fake_lock_context(request: pytest.FixtureRequest) -> Iterator[FakeContext]:
    """A context on a server inside the process, closed after the test.

    In a test that has the fixture ``lock_clock``, too, renewals and deadlines go by that clock. The server expires keys by
    the system's clock nevertheless.
    """
    clock = request.getfixturevalue("lock_clock") if "lock_clock" in request.fixturenames else None
    with fake_context(clock=clock) as context:
        yield context


@pytest.fixture
def lose(fake_lock_context: FakeContext) -> Callable[[Any], None]:
    """A function that makes a held lock of ``fake_lock_context`` lost, as if its key had been deleted.

    ``lose(lock)`` returns when the lock knows it, and callbacks (``on_lost``) of threads have been called; those of tasks
    run when their event loop does. It takes a lock of any kind. Another lock object can acquire the name then.
    """

    def make_lost(lock: Any) -> None:
        for name in getattr(lock, "names", None) or [lock.name]:  # a multi-lock has several
            fake_lock_context.force_release(name, foreign=True)  # its token may be a caller's
        NOTIFIER.drain(_CALLBACKS_S)

    return make_lost
