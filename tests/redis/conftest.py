"""Fixtures: a lock that can be handed over."""

from __future__ import annotations

import pytest

from wheel_lock import Lock, LockContext


@pytest.fixture
def lock(context: LockContext) -> Lock:
    """A lock that is held, and can be handed over."""
    lock = context.lock("import:2026", timeout=20.0, fencing=True, max_hold=1000.0)
    assert lock.acquire()
    return lock
