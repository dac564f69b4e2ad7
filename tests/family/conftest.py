"""Fixtures: callers of both APIs that live on between calls, and a context behind a network that can fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.family.callers import APIS, Caller, NewCaller, callers
from tests.redis.support import Backend
from wheel_lock import LockContext


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    """Which API is used: that of threads, or that of tasks."""
    name: str = request.param
    return name


@pytest.fixture
def new_caller(backend: Backend, api: str) -> Iterator[NewCaller]:
    """What makes threads or tasks that live until the test ends. (Their contexts are closed later.)"""
    with callers(api) as new:
        yield new


@pytest.fixture
def me(new_caller: NewCaller, context: LockContext) -> Caller:
    """A thread or task that uses `context`."""
    return new_caller(context)


@pytest.fixture
def another(new_caller: NewCaller, context: LockContext) -> Caller:
    """A second thread or task that uses `context`."""
    return new_caller(context)


@pytest.fixture
def stranger(new_caller: NewCaller, other: LockContext) -> Caller:
    """One that uses `other`."""
    return new_caller(other)
