"""Replies that never come, and callers who are interrupted: what was granted is recognised, or undone."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, Losses, interrupted
from tests.support.background import Background
from tests.support.callers import Caller
from tests.support.event_loops import Run, until
from tests.support.lock_types import KINDS, NAME, make, traces, zmembers
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockNotHeld
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


def test_a_downgrade_whose_reply_is_lost_is_recognised(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext
) -> None:
    writer = through_proxy.rw_lock(NAME).write()
    writer.acquire()
    cutting = Background(cut_when(proxy, lambda: zmembers(real)[0].startswith(b"r:")))
    reader = writer.downgrade()
    cutting.result()
    assert reader.is_held
    assert reader.owned()
    assert zmembers(real) == [reader.token]
    assert reader.release() is True


@kinds
def test_an_interrupted_acquire_leaves_nothing(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext, kind: str
) -> None:
    lock: Any = make(through_proxy, kind)
    proxy.to_client.delay_s = math.inf
    with interrupted(lambda: real.view.exists(NAME)):
        lock.acquire()
    proxy.to_client.delay_s = 0.0
    eventually(lambda: traces(real) == [], LONG_S)
    assert not lock.is_held
    assert getattr(lock, "count", 0) == 0
    assert lock.acquire(blocking=False)
    lock.release()


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


def test_an_interrupted_downgrade_keeps_nothing(real: Backend, proxy: TcpProxy, through_proxy: LockContext) -> None:
    lock = through_proxy.rw_lock(NAME)
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


# A writer that stops writing and reads on, in asyncio


@pytest.mark.parametrize("when", ["before the reply", "after the reply"])
def test_a_task_that_is_cancelled_while_it_stops_writing_reads_on(
    run: Run, backend: Backend, context: LockContext, when: str
) -> None:
    losses = Losses()

    async def main() -> None:
        lock = context.asyncio.rw_lock(NAME, on_lost=losses)
        writer, reader = lock.write(), lock.read()
        await writer.acquire()
        await reader.acquire()
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None

        def cancel() -> None:
            if when == "after the reply":
                settle(context.timer)  # it has come, and the task has not run since
            me.cancel()

        loop.call_soon(cancel)
        with pytest.raises(asyncio.CancelledError):
            await writer.release()
        me.uncancel()
        await until(lambda: reader.is_held)
        assert (writer.count, reader.count) == (0, 1)
        assert not writer.is_held
        assert await reader.owned()
        assert zmembers(backend) == [reader.token]
        assert await reader.release() is True
        assert traces(backend) == []

    run(main())
    assert losses.all_told() == []


def throw_away(coroutine: Coroutine[Any, Any, None], when: Callable[[], bool]) -> None:
    """Run it until something is true; then close the event loop, and end it there, as the collector would."""

    def turned() -> bool:
        loop.run_until_complete(asyncio.sleep(0))
        return when()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # asyncio itself complains about a task that never ends
    task = loop.create_task(coroutine)
    eventually(turned, LONG_S)
    assert not task.done()
    loop.close()
    coroutine.close()  # raises what it ends with, unless that is what it is told


@pytest.mark.slow
def test_a_coroutine_that_is_thrown_away_while_it_stops_writing_ends_quietly(
    real: Backend, proxy: TcpProxy, through_proxy: LockContext
) -> None:
    async def write_and_read() -> None:
        lock: Any = through_proxy.asyncio.rw_lock(NAME, timeout=0.6)
        writer, reader = lock.write(), lock.read()
        await writer.acquire()
        await reader.acquire()
        proxy.to_client.delay_s = math.inf
        await writer.release()

    throw_away(write_and_read(), lambda: any(member.startswith(b"r:") for member in zmembers(real)))
    proxy.to_client.delay_s = 0.0

    def free() -> bool:
        gc.collect()
        return traces(real) == []

    eventually(free, LONG_S, "nothing is renewed for it", interval_s=0.05)
    eventually(lambda: through_proxy.stats().held == 0, LONG_S)
