"""Who may release or change what another thread, or task, has acquired: as the table in docs/guide/which-lock.md says."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.backend import Backend
from tests.support.callers import Caller
from tests.support.lock_types import KINDS, make
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, WrongThread

pytestmark = pytest.mark.servers("real")

UNBOUND = ("exclusive", "fair", "multi", "semaphore")
"""The kinds that can be made without an owner."""
COUNTED = ("reentrant", "read", "write")
OF_A_TASK = (*COUNTED, "semaphore")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_thread_that_acquired_it_and_of_some_kinds_only_the_task(
    api: str, me: Caller, another: Caller, kind: str
) -> None:
    lock = make(me.locks, kind)
    theirs = another.sees(lock)
    assert lock.acquire()
    if api == "threads" or kind in OF_A_TASK:
        changes = [theirs.release]
        if kind != "multi":
            changes += [theirs.reacquire, partial(theirs.extend, 1.0)]
        for change in changes:
            with pytest.raises(WrongThread):
                change()
        assert lock.is_held
        assert kind == "multi" or lock.owned()
        lock.release()
    else:
        theirs.release()
    assert not lock.is_held


@pytest.mark.parametrize("kind", UNBOUND)
def test_anybody_where_it_has_no_owner(me: Caller, another: Caller, kind: str) -> None:
    lock = make(me.locks, kind, thread_local=False)
    assert lock.acquire()
    another.sees(lock).release()
    assert not lock.is_held


@pytest.mark.parametrize("kind", UNBOUND)
def test_who_has_lost_it_neither_has_nor_releases_what_another_acquires_through_it(
    backend: Backend, me: Caller, another: Caller, kind: str
) -> None:
    lock = make(me.locks, kind, renew_every=0.05, thread_local=False)
    theirs = another.sees(lock)
    lock.enters()
    backend.view.flushall()
    eventually(lambda: lock.lost)
    theirs.acquire()
    assert lock.lost
    assert not lock.is_held
    with pytest.raises(LockLost):
        lock.leaves(None, None, None)
    assert theirs.is_held
    theirs.release()
    assert lock.acquire()
    theirs.release()
    assert not lock.is_held


@pytest.mark.parametrize("api", ["tasks"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_may_be_left_by_another_task_unless_it_is_counted(me: Caller, another: Caller, kind: str) -> None:
    lock = make(me.locks, kind)
    theirs = another.sees(lock)
    lock.enters()
    if kind in COUNTED:
        with pytest.raises(WrongThread):
            theirs.leaves(None, None, None)
        assert lock.is_held
        lock.leaves(None, None, None)
    else:
        theirs.leaves(None, None, None)
    assert not lock.is_held


def test_locks_are_released_and_exported_in_bulk_by_their_own_context(context: LockContext, other: LockContext) -> None:
    locks = list(context.acquire_many(["a", "b"]).values())
    for refused in (other.release_many, other.export_many):
        with pytest.raises(ValueError, match="another context"):
            refused(locks)
    assert [lock.is_held for lock in locks if lock] == [True, True]
    assert context.stats().held == 2
    context.release_many(locks)
    assert context.stats().held == 0
