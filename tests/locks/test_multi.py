"""Several locks as one: all are held, or none, and a release says which were lost."""

from __future__ import annotations

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import LockAlreadyHeld, LockLost, LockNotHeld, LocksLost, LossReason

pytestmark = pytest.mark.servers("real")

NAMES = ("a", "b", "c")


def test_all_are_held_inside_with_and_free_after_it(backend: Backend, me: Caller) -> None:
    with me.locks.multi_lock(["c", "a", b"b", "a"]) as lock:
        assert lock.names == ("a", b"b", "c")
        assert lock.is_held
        tokens = {name: one.token for name, one in lock.locks.items()}
        assert {name: backend.view.get(name) for name in lock.names} == tokens
        assert len(set(tokens.values())) == 3
        assert all(0 < backend.view.pttl(name) <= 30_000 for name in NAMES)
        assert 29.0 < lock.remaining() <= 30.0
        assert me.context.stats().held == 3
        lock.raise_if_lost()
        with pytest.raises(LockAlreadyHeld):
            lock.acquire()
    assert not lock.is_held
    assert lock.remaining() == 0.0
    assert backend.view.dbsize() == 0
    for change in (lock.release, lock.raise_if_lost):
        with pytest.raises(LockNotHeld):
            change()


# Losses


def test_a_release_says_which_were_lost_and_releases_the_others(backend: Backend, me: Caller) -> None:
    losses = Losses()
    lock = me.locks.multi_lock(NAMES, renew_every=0.02, on_lost=losses)
    lock.acquire()
    backend.view.delete("b")
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S)
    assert not lock.is_held
    assert lock.remaining() == 0.0
    assert [name for name, one in lock.locks.items() if one.is_held] == ["a", "c"]
    with pytest.raises(LockLost):
        lock.raise_if_lost()
    with pytest.raises(LocksLost) as caught:
        lock.release()
    assert caught.value.losses == {"b": LossReason.KEY_GONE}
    assert backend.view.dbsize() == 0
    assert me.context.stats().held == 0
    eventually(losses.delivered, LONG_S)
    assert [(event.name, event.reason) for event in losses.events] == [("b", LossReason.KEY_GONE)]
    with lock:
        assert lock.lost is None
