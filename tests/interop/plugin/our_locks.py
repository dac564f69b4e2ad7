"""A pytest plugin for redis-py's own tests: our classes take the place of `Lock` in their modules.

It is loaded by name (`-p our_locks`) in a pytest of its own, so it must not import from this project's tests: a package
called `tests` is redis-py's there. (`standstill` is tests/support/standstill.py, by a path of its own.)
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from wheel_lock import redis_lock

if TYPE_CHECKING:
    from tests.support.standstill import Standstills, running
else:
    from standstill import Standstills, running

LONG_S = 0.1  # redis-py's tests measure how long a lock has waited, to a twentieth of a second

acquired: dict[str, int] = {}
excused: list[str] = []
standstills = Standstills()
began = pytest.StashKey[float]()


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


def pytest_sessionstart() -> None:
    standstills.start()


def pytest_sessionfinish() -> None:
    standstills.stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[began] = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    since, now = item.stash.get(began, time.monotonic()), time.monotonic()
    if report.failed and now - since - running(since, now, standstills.seen) > LONG_S:
        excused.append(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, times in sorted(acquired.items()):
        terminalreporter.write_line(f"acquired with {name}: {times}")
    for nodeid in excused:
        terminalreporter.write_line(f"failed beside a standstill: {nodeid}")
