"""Replies that never come, and callers who are interrupted: what was granted is recognised, or undone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.family.support import KINDS, NAME, make, traces, zmembers
from tests.redis.support import LONG_S, Backend, Background, Losses, interrupted
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockNotHeld
from wheel_lock.lease import Lease
from wheel_lock.locks.read_write import BaseWriteLock
from wheel_lock.locks.reentrancy import HoldCount

kinds = pytest.mark.parametrize("kind", KINDS)


def cut_when(proxy: TcpProxy, done: Callable[[], object]) -> Callable[[], None]:
    """Withhold all replies; what is returned cuts the connections as soon as the server has done something."""
    proxy.to_client.delay_s = math.inf

    def cut() -> None:
        eventually(done, LONG_S)
        proxy.to_client.delay_s = 0.0
        proxy.cut()

    return cut


@kinds
def test_a_grant_whose_reply_is_lost_is_recognised(real: Backend, proxy: TcpProxy, far: LockContext, kind: str) -> None:
    lock = make(far, kind)
    cutting = Background(cut_when(proxy, lambda: real.view.exists(NAME)))
    assert lock.acquire(blocking=False)
    cutting.result()
    assert lock.is_held
    lock.release()
    assert traces(real) == []


def test_a_downgrade_whose_reply_is_lost_is_recognised(real: Backend, proxy: TcpProxy, far: LockContext) -> None:
    writer = far.rw_lock(NAME).write()
    writer.acquire()
    cutting = Background(cut_when(proxy, lambda: zmembers(real)[0].startswith(b"r:")))
    reader = writer.downgrade()
    cutting.result()
    assert reader.is_held
    assert reader.owned()
    assert zmembers(real) == [reader.token]
    assert reader.release() is True


@kinds
def test_an_interrupted_acquire_leaves_nothing(real: Backend, proxy: TcpProxy, far: LockContext, kind: str) -> None:
    lock: Any = make(far, kind)
    proxy.to_client.delay_s = math.inf
    with interrupted(lambda: real.view.exists(NAME)):
        lock.acquire()
    proxy.to_client.delay_s = 0.0
    eventually(lambda: traces(real) == [], LONG_S)
    assert not lock.is_held
    assert getattr(lock, "count", 0) == 0
    assert lock.acquire(blocking=False)
    lock.release()


def test_an_interrupted_downgrade_keeps_nothing(real: Backend, proxy: TcpProxy, far: LockContext) -> None:
    lock = far.rw_lock(NAME)
    writer = lock.write()
    writer.acquire()
    proxy.to_client.delay_s = math.inf
    with interrupted(lambda: zmembers(real)[0].startswith(b"r:")):
        writer.downgrade()
    proxy.to_client.delay_s = 0.0
    eventually(lambda: traces(real) == [], LONG_S)
    assert not writer.is_held
    assert writer.count == 1
    with pytest.raises((LockLost, LockNotHeld)):
        writer.release()
    assert writer.count == 0
    assert lock.write().acquire(blocking=False)


@pytest.mark.parametrize("strikes", [1, 2])
def test_who_is_interrupted_before_he_knows_that_he_only_reads_reads_on_all_the_same(
    real: Backend, far: LockContext, monkeypatch: pytest.MonkeyPatch, strikes: int
) -> None:
    downgraded, left = BaseWriteLock._downgraded, strikes

    def strike(hold: HoldCount, lease: Lease, reads: int) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise KeyboardInterrupt
        downgraded(hold, lease, reads)

    losses = Losses()
    lock = far.rw_lock(NAME, on_lost=losses)
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


def test_who_is_interrupted_while_he_stops_writing_reads_on(real: Backend, proxy: TcpProxy, far: LockContext) -> None:
    losses = Losses()
    lock = far.rw_lock(NAME, on_lost=losses)
    writer, reader = lock.write(), lock.read()
    writer.acquire()
    reader.acquire()
    proxy.to_client.delay_s = math.inf
    with interrupted(lambda: zmembers(real)[0].startswith(b"r:")):
        writer.release()
    assert not reader.is_held  # the server has not confirmed it yet
    proxy.to_client.delay_s = 0.0
    eventually(lambda: reader.is_held, LONG_S)
    assert (writer.count, reader.count) == (0, 1)
    assert not writer.is_held
    assert reader.owned()
    assert zmembers(real) == [reader.token]
    assert reader.release() is True
    assert traces(real) == []
    assert losses.all_told() == []
    assert lock.write().acquire(blocking=False)
