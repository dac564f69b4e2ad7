"""Several locks as one: all or none, nothing held while waiting, no deadlock."""

from __future__ import annotations

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.callers import Caller, NewCaller
from tests.support.lock_types import deaf, listening
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LocksLost,
    LossReason,
)

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


# Waiting


def test_it_waits_for_the_one_that_blocks_and_then_for_another_holding_nothing_meanwhile(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    lock = new_caller(waiter).locks.multi_lock(NAMES, blocking_timeout=LONG_S)
    first, second = context.lock("a"), context.lock("c")
    first.acquire()
    second.acquire()
    waiting = lock.acquire.begin()
    eventually(lambda: listening(backend) == 1)
    assert backend.view.set("b", "somebody", nx=True), "it holds nothing while it waits"
    first.release()
    for name in ("b", "c"):
        channel = f"wheel_lock:wake:{{{name}}}"
        eventually(lambda: backend.view.pubsub_numsub(channel)[0][1] == 1, LONG_S, f"it waits for {name}")  # noqa: B023
        if name == "b":
            backend.view.delete(name)
            backend.view.publish(channel, "0")
    assert not waiting.done()
    assert waiter.stats().held == 0
    second.release()
    assert waiting.result(LONG_S)
    assert lock.is_held
    lock.release()


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
    eventually(losses.all_told, LONG_S)
    assert [(event.name, event.reason) for event in losses.events] == [("b", LossReason.KEY_GONE)]
    with lock:
        assert lock.lost is None
