"""What is found at the server instead of the expected, and limits that are reached while a lock changes hands."""

from __future__ import annotations

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.lock_types import NAME
from tests.support.waiting import eventually
from wheel_lock import LockLost, LossReason

pytestmark = pytest.mark.servers("real")


# Limits


@pytest.mark.parametrize("way", ["downgrade", "release"])
def test_the_limits_of_the_outermost_acquire_hold_when_another_object_changes_to_reading(
    backend: Backend, way: str
) -> None:
    context, clock = backend.stepped_context()
    losses, forgotten = Losses(), Losses()
    writer = context.rw_lock(NAME, max_hold=20.0, on_lost=losses).write()
    writer.acquire()
    lock = context.rw_lock(NAME, on_lost=forgotten)
    if way == "downgrade":
        reader = lock.write().downgrade()
    else:
        reader = lock.read()
        reader.acquire()
        assert lock.write().release() is True
    clock.advance(15.0)
    assert reader.is_held
    clock.advance(10.0)
    assert not reader.is_held
    eventually(lambda: reader.lost is LossReason.HOLD_LIMIT, LONG_S)
    eventually(lambda: len(losses.delivered()) == 1, LONG_S)
    assert losses.events[0].reason is LossReason.HOLD_LIMIT
    assert forgotten.delivered() == []
    with pytest.raises(LockLost):
        reader.release()
