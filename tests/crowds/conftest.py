"""Fixtures: a context of the test's own, beside the processes that it starts, and when the test itself stood still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.support import own_context
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext


@pytest.fixture
def context(redis_server: RedisServer) -> Iterator[LockContext]:
    with own_context(redis_server) as context:
        yield context
