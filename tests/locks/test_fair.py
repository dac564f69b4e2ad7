"""The fair lock: first come, first served, across contexts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.callers import Caller, NewCaller
from tests.support.lock_types import NAME, traces
from tests.support.waiting import eventually
from wheel_lock import (
    LockContext,
)

pytestmark = pytest.mark.servers("real")

QUEUE = f"wheel_lock:queue:{{{NAME}}}"


def queued(backend: Backend, places: int) -> None:
    """Return when so many stand in the queue."""
    eventually(lambda: backend.view.zcard(QUEUE) == places, LONG_S, f"{places} are queued")


def new(caller: Caller, **terms: Any) -> Any:
    """A fair lock, whose acquire waits for long unless a limit is passed."""
    return caller.locks.fair_lock(NAME, **{"blocking_timeout": LONG_S, **terms})


def test_it_excludes_the_plain_lock_of_its_name(context: LockContext, other: LockContext) -> None:
    with context.fair_lock(NAME):
        assert not other.lock(NAME).acquire(blocking=False)
    with context.lock(NAME):
        assert not other.fair_lock(NAME).acquire(blocking=False)


def test_it_is_granted_in_the_order_of_arrival_across_contexts(backend: Backend, new_caller: NewCaller) -> None:
    contexts = [backend.context(fallback_interval=30.0) for _ in range(3)]
    with contexts[0].fair_lock(NAME):
        locks, waits = [], []
        for number in range(8):
            locks.append(new(new_caller(contexts[number % 3])))
            waits.append(locks[-1].acquire.begin())
            queued(backend, number + 1)
    for number, lock in enumerate(locks):
        assert waits[number].result(LONG_S)
        assert not any(later.done() for later in waits[number + 1 :])
        lock.release()
    assert traces(backend) == []
