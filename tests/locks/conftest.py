"""Fixtures: more callers of both APIs that live on between calls."""

from __future__ import annotations

import pytest

from tests.support.callers import Caller, NewCaller
from wheel_lock import LockContext


@pytest.fixture
def another(new_caller: NewCaller, context: LockContext) -> Caller:
    """A second thread or task that uses `context`."""
    return new_caller(context)


@pytest.fixture
def stranger(new_caller: NewCaller, other: LockContext) -> Caller:
    """One that uses `other`."""
    return new_caller(other)
