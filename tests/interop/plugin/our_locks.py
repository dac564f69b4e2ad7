"""A pytest plugin for redis-py's own tests: our classes take the place of `Lock` in their modules.

It is loaded by name (`-p our_locks`) in a pytest of its own, so it must not import from this project's tests: a package
called `tests` is redis-py's there.
"""

from __future__ import annotations

from typing import Any

import pytest

from wheel_lock import redis_lock

acquired: dict[str, int] = {}


class Lock(redis_lock.Lock):
    def acquire(self, *arguments: Any, **options: Any) -> bool:
        granted = super().acquire(*arguments, **options)
        acquired[type(self).__name__] = acquired.get(type(self).__name__, 0) + granted
        return granted


class PollingLock(Lock):
    """Waits by redis-py's own loop and so by the clock that some of the tests have put into it."""

    polls = True


class AsyncLock(redis_lock.AsyncLock):
    async def acquire(self, *arguments: Any, **options: Any) -> bool:
        granted = await super().acquire(*arguments, **options)
        acquired[type(self).__name__] = acquired.get(type(self).__name__, 0) + granted
        return granted


class PollingAsyncLock(AsyncLock):
    polls = True


@pytest.fixture(autouse=True)
def our_lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = "fake_lock_time" in request.fixturenames
    if ".test_asyncio." in request.module.__name__:
        monkeypatch.setattr(request.module, "Lock", PollingAsyncLock if by_hand else AsyncLock)
    else:
        monkeypatch.setattr(request.module, "Lock", PollingLock if by_hand else Lock)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, times in sorted(acquired.items()):
        terminalreporter.write_line(f"acquired with {name}: {times}")
