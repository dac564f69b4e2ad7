"""Replies that never come, and callers who are interrupted: what was granted is recognised, or undone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.background import Background
from tests.support.callers import Caller
from tests.support.lock_types import KINDS, NAME, make, traces, zmembers
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockNotHeld
from wheel_lock.lease import Lease
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.read_write import BaseWriteLock
from wheel_lock.locks.reentrancy import BaseReentrantLock, HoldCount
from wheel_lock.testing import settle

pytestmark = pytest.mark.servers("real")

kinds = pytest.mark.parametrize("kind", KINDS)


class Struck(BaseException):
    """What is raised in the middle of a call, as Ctrl-C would be."""


def strike_after_the_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next acquire when the grant has been taken, and the call has not returned."""
    for handle in (BaseLock, BaseReentrantLock):

        def take(self: BaseLock, lease: Lease, original: Callable[..., None] = handle._take) -> None:
            original(self, lease)
            monkeypatch.undo()
            raise Struck

        monkeypatch.setattr(handle, "_take", take)


def cut_when(proxy: TcpProxy, done: Callable[[], object]) -> Callable[[], None]:
    """Withhold all replies; what is returned cuts the connections as soon as the server has done something."""
    proxy.to_client.delay_s = math.inf

    def cut() -> None:
        eventually(done, LONG_S)
        proxy.to_client.delay_s = 0.0
        proxy.cut()

    return cut


@kinds
def test_a_grant_whose_reply_is_lost_is_recognised(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext, kind: str
) -> None:
    lock = make(through_proxy, kind)
    cutting = Background(cut_when(proxy, lambda: real.view.exists(NAME)))
    assert lock.acquire(blocking=False)
    cutting.result()
    assert lock.is_held
    lock.release()
    assert traces(real) == []


@pytest.mark.parametrize("kind", ["exclusive", "semaphore", "reentrant", "read", "write"])
def test_after_an_interruption_that_follows_the_grant_the_next_acquire_is_a_new_one(
    backend: Backend, me: Caller, other: LockContext, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    strike_after_the_grant(monkeypatch)
    lock, again = make(me.locks, kind), make(me.locks, kind)
    with pytest.raises(Struck):
        lock.acquire()
    assert kind in ("exclusive", "semaphore") or lock.count == 0
    assert again.acquire(blocking_timeout=LONG_S)
    assert kind in ("exclusive", "semaphore") or again.count == 1
    settle(me.context.timer)
    assert again.is_held
    assert again.owned()
    assert me.context.stats().held == 1
    assert not make(other, "write" if kind == "read" else kind).acquire(blocking=False)
    assert again.release() is True
    assert traces(backend) == []


@pytest.mark.parametrize("strikes", [1, 2])
def test_who_is_interrupted_before_he_knows_that_he_only_reads_reads_on_all_the_same(
    real: Backend, through_proxy: LockContext, monkeypatch: pytest.MonkeyPatch, strikes: int
) -> None:
    downgraded, left = BaseWriteLock._downgraded, strikes

    def strike(hold: HoldCount, lease: Lease, reads: int) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise KeyboardInterrupt
        downgraded(hold, lease, reads)

    losses = Losses()
    lock = through_proxy.rw_lock(NAME, on_lost=losses)
    writer, reader = lock.write(), lock.read()
    writer.acquire()
    reader.acquire()
    monkeypatch.setattr(BaseWriteLock, "_downgraded", staticmethod(strike))
    with pytest.raises(KeyboardInterrupt):
        writer.release()
    monkeypatch.undo()
    eventually(lambda: reader.is_held, LONG_S)
    assert (writer.count, reader.count) == (0, 1)
    assert not writer.is_held
    assert zmembers(real) == [reader.token]
    with pytest.raises(LockNotHeld):
        writer.release()
    assert reader.release() is True
    assert losses.all_told() == []
    assert lock.write().acquire(blocking=False)
