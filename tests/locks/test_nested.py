"""Whose lock it is: who would wait for its own release gets an error at once, and who may release what another acquired."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.backend import Backend
from tests.support.callers import Caller
from tests.support.lock_types import KINDS, NAME, make, traces
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockContext, LockLost, WrongThread

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


# Who may release or change what another thread, or task, has acquired: as the table in docs/guide/which-lock.md says


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
