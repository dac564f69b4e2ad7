"""Calls with a time limit of their own, to servers that are away."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis

from tests.support.backend import LONG_S
from wheel_lock import LockTimeout, LockUnavailable

LIMIT_S = 0.3
RESPONSE_S = 60.0
"""What a call would take that does not heed its caller's limit."""


def within_limit(call: Callable[[], object]) -> None:
    """Call, and see it fail because servers are away, when its time is up."""
    began = time.monotonic()
    with pytest.raises((LockTimeout, LockUnavailable, redis.ConnectionError, redis.TimeoutError)):
        call()
    assert LIMIT_S - 0.01 <= time.monotonic() - began < LONG_S
