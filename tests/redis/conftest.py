"""Fixtures: a context on whatever server the test runs against."""

from __future__ import annotations

import pytest

from tests.redis.support import Backend
from wheel_lock import LockContext


@pytest.fixture
def context(backend: Backend) -> LockContext:
    return backend.context()
