"""Nested acquires of one name through several objects: who would wait for its own release gets an error at once."""

from __future__ import annotations

import pytest

from tests.support.backend import Backend
from tests.support.callers import Caller
from tests.support.lock_types import NAME, make, traces
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld

pytestmark = pytest.mark.servers("real")

SELF_EXCLUDING = [
    ("exclusive", "exclusive"),
    ("exclusive", "reentrant"),
    ("exclusive", "multi"),
    ("reentrant", "exclusive"),
    ("fair", "fair"),
    ("multi", "exclusive"),
    ("multi", "multi"),
]


@pytest.mark.parametrize(("outer", "inner"), SELF_EXCLUDING)
def test_an_endless_wait_for_the_callers_own_release_is_refused(
    backend: Backend, me: Caller, outer: str, inner: str
) -> None:
    held = make(me.locks, outer)
    held.enters()
    before = traces(backend)
    with pytest.raises(LockAlreadyHeld, match="by this very thread or task"):
        make(me.locks, inner).acquire()
    assert held.is_held
    assert me.context.stats().waiting == 0
    eventually(lambda: traces(backend) == before)
    held.leaves(None, None, None)


@pytest.mark.parametrize("api", ["tasks"], indirect=True)
def test_a_lock_of_which_the_task_alone_releases_its_hold_is_not_waited_for(me: Caller) -> None:
    held = make(me.locks, "reentrant")
    held.acquire()
    with pytest.raises(LockAlreadyHeld):
        me.locks.lock(NAME).acquire()
    held.release()


@pytest.mark.parametrize("api", ["threads"], indirect=True)
def test_a_polling_wait_and_a_bulk_acquire_are_refused_too(me: Caller) -> None:
    held = me.locks.lock(NAME)
    held.acquire()
    with pytest.raises(LockAlreadyHeld):
        me.locks.lock(NAME, retry_every=0.05).acquire()
    for together in (False, True):
        with pytest.raises(LockAlreadyHeld):
            me.locks.acquire_many(
                ["shard:1", NAME, "shard:2"], blocking=True, all_or_nothing=together, thread_local=True
            )
        eventually(lambda: me.context.stats().held == 1)
    assert held.release()
