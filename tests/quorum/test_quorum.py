"""Locks that a majority of five independent masters grants, while all of them are well."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.sentinel

from tests.quorum.masters import Masters
from tests.support.background import Background, in_thread
from tests.support.logged import logged
from tests.support.waiting import eventually
from wheel_lock import (
    HashedWheelTimer,
    LockAlreadyHeld,
    LockContext,
    LockNotAcquired,
    LockNotHeld,
    LockServerError,
    LossReason,
    LostEvent,
    WheelLockError,
    WrongThread,
)
from wheel_lock.aio.context import AsyncContext
from wheel_lock.protocol.owners import owner_of
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.sync.context import ThreadLocks

pytestmark = pytest.mark.slow

NAME = "order:42"
OWNER = "billing@host-7"


def test_a_lock_is_held_on_every_master_and_released_there(masters: Masters, context: QuorumContext) -> None:
    lock = context.lock("order:42", timeout=10.0)
    assert lock.acquire()
    assert lock.is_held
    assert 0 < lock.remaining() < 10.0
    eventually(lambda: masters.holders("order:42") == [lock.token] * 5)
    assert lock.locked()
    assert lock.owned()
    assert [held.name for held in context.held()] == ["order:42"]
    assert lock.release() is True
    assert not lock.is_held
    assert lock.lost is None
    eventually(lambda: masters.count("order:42") == 0)
    assert not lock.locked()
    assert not lock.owned()
    with pytest.raises(LockNotHeld):
        lock.release()


def test_data_under_the_name_is_an_error_to_those_who_wait(masters: Masters, context: QuorumContext) -> None:
    for server in masters.servers:
        server.client().hset("order:42", "field", "value")
    assert not context.lock("order:42").acquire(blocking=False)
    with pytest.raises(LockServerError, match="hash that does not expire") as caught:
        context.lock("order:42").acquire()
    assert caught.value.code == "WRONGTYPE"


def test_a_reentrant_lock_is_counted_here(masters: Masters, context: QuorumContext) -> None:
    with context.reentrant_lock("order:42") as outer:
        with context.reentrant_lock("order:42") as inner:
            assert inner.count == 2
            assert inner.release() is False
            assert inner.acquire()
        assert outer.count == 1
        assert in_thread(lambda: context.reentrant_lock("order:42").acquire(blocking=False)) is False
        assert context.lock("order:42").acquire(blocking=False) is False
        assert outer.owned()
        with pytest.raises(WrongThread):
            in_thread(outer.release)
    assert outer.count == 0
    eventually(lambda: masters.count("order:42") == 0)


def test_asyncio(masters: Masters, context: QuorumContext) -> None:
    async def main() -> None:
        order = 0

        async def take_turns() -> None:
            nonlocal order
            for _ in range(3):
                async with context.asyncio.lock("turns") as lock:
                    before = order
                    await asyncio.sleep(0.002)
                    order = before + 1
                    assert lock.is_held

        await asyncio.gather(*[take_turns() for _ in range(4)])
        assert order == 12
        lock = context.asyncio.lock("order:42")
        assert await lock.acquire()
        assert await lock.locked()
        assert await lock.owned()
        assert await lock.extend(5.0)
        assert await context.asyncio.lock("order:42").acquire(blocking=False) is False
        waiting = asyncio.ensure_future(context.asyncio.lock("order:42").acquire())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await lock.release()
        async with context.asyncio.reentrant_lock("r") as outer, context.asyncio.reentrant_lock("r"):
            assert outer.count == 2

    asyncio.run(main())
    eventually(lambda: masters.count("order:42") + masters.count("turns") + masters.count("r") == 0)
    assert context.stats().held == 0


def test_a_function_runs_while_it_holds_one(context: QuorumContext) -> None:
    @context.locked("report:{user_id}", timeout=10.0)
    def held(user_id: int) -> list[str | bytes]:
        return [lock.name for lock in context.held()]

    assert held(7) == ["report:7"]


def test_close_releases_everywhere(masters: Masters) -> None:
    losses: list[LostEvent] = []
    context = masters.context()
    lock = context.lock("order:42", on_lost=losses.append)
    lock.acquire()
    assert "1 held" in repr(context)
    context.close()
    assert context.closed
    assert masters.count("order:42") == 0
    eventually(lambda: [event.reason for event in losses] == [LossReason.CONTEXT_CLOSED])
    with pytest.raises(WheelLockError):
        context.lock("order:42").acquire()


def test_what_several_masters_cannot_do_is_refused_before_any_io(masters: Masters) -> None:
    with masters.context() as context:
        for name in ("rw_lock", "fair_lock", "semaphore", "multi_lock", "acquire_many", "adopt"):
            for face in (context, context.asyncio):
                with pytest.raises(WheelLockError, match=f"{name}.. is not available"):
                    getattr(face, name)("order:42")
        with pytest.raises(ValueError, match="token"):
            context.lock("order:42").acquire(token="mine")
        assert context.stats().connects == 0
        assert not hasattr(context, "no_such_thing")
        with context.lock("order:42") as lock, pytest.raises(WheelLockError, match="handed over"):
            lock.export()


def test_every_public_method_of_a_context_of_one_server_exists_or_is_refused(
    masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    for factory in (ThreadLocks, AsyncContext):
        monkeypatch.setattr(factory, "new_lock", lambda *arguments: None, raising=False)
    names = {name for name in dir(AsyncContext) if not name.startswith("_")}
    with masters.context() as context:
        for side in (context, context.asyncio):
            assert [name for name in names if not hasattr(side, name)] == []
            with pytest.raises(
                WheelLockError, match=r"new_lock\(\) is not available on independent masters: it takes one"
            ):
                side.new_lock("order:42")


def test_clients_of_too_few_masters_are_refused() -> None:
    clients = [redis.Redis(port=port) for port in (1, 2, 3)]
    with pytest.raises(ValueError, match="3 clients or more"):
        LockContext.quorum(clients[:2])
    with pytest.raises(ValueError, match="twice"):
        LockContext.quorum([*clients, clients[0]])
    with pytest.raises(ValueError, match="localhost:2 is given twice"):
        LockContext.quorum([*clients, redis.Redis(port=2, db=1)])
    with pytest.raises(TypeError):
        LockContext.quorum([*clients, redis.sentinel.Sentinel([("s1", 1)]).master_for("locks")])
    with pytest.raises(ValueError, match="node_timeout"):
        LockContext.quorum(clients, node_timeout=0.0)


def test_a_timer_whose_ticks_are_too_long_for_a_timeout_is_refused_before_any_master_is_asked(masters: Masters) -> None:
    timer = HashedWheelTimer(tick_ms=500)
    with masters.context(timer=timer) as context:
        with pytest.raises(ValueError, match=r"timeout must be at least 2\.02 seconds .* ticks of 0\.5 s, not 2,"):
            context.lock("order:42", timeout=2.0).acquire()
        assert context.stats().connects == 0
    timer.stop()


def test_the_locks_of_a_quorum_refuse_the_question(masters: Masters) -> None:
    with masters.context(owner=OWNER, readable_owner=True) as quorum, quorum.reentrant_lock(NAME) as lock:
        assert {owner_of(value) for value in masters.holders(NAME) if value} == {OWNER}
        assert lock.owned()
        with pytest.raises(WheelLockError, match="several masters"):
            lock.holder()
        with pytest.raises(WheelLockError, match="force_release\\(\\) is not available"):
            quorum.force_release(NAME)
        with pytest.raises(LockNotAcquired) as raised:
            quorum.lock(NAME, blocking=False).__enter__()
        assert raised.value.holder is None


def test_a_prefix_precedes_the_name_at_each_master(masters: Masters) -> None:
    with masters.context(prefix="billing:", timeout=20.0, blocking_timeout=0.05) as quorum, quorum.lock(NAME) as lock:
        assert (lock.name, lock.timeout) == (NAME, 20.0)
        eventually(lambda: all(masters.holders("billing:" + NAME)))  # a majority is enough for the grant
        assert not any(masters.holders(NAME))
        assert lock.locked()
        assert lock.owned()
        assert not quorum.reentrant_lock(NAME).acquire()


def test_an_endless_wait_for_the_callers_own_release_is_refused(masters: Masters) -> None:
    with masters.context() as quorum, quorum.lock(NAME) as lock:
        with pytest.raises(LockAlreadyHeld, match="by this very thread or task"):
            quorum.lock(NAME).acquire()
        assert lock.owned()
        assert quorum.stats().waiting == 0


def test_a_wait_for_the_callers_own_lock_that_ends_by_itself_is_none(masters: Masters) -> None:
    with masters.context() as quorum:
        outer, inner = quorum.lock(NAME, 0.3, renew=False), quorum.lock(NAME)
        assert outer.acquire()
        assert inner.acquire()


def test_a_long_wait_is_said_without_the_holder(masters: Masters) -> None:
    with masters.context() as rival, masters.stepped() as (quorum, clock), rival.lock(NAME, 60.0), logged() as log:
        waits = Background(lambda: quorum.lock(NAME, blocking_timeout=30.0).acquire())
        eventually(lambda: quorum.stats().waiting == 1)
        for _ in range(12):
            clock.advance(1.0)
        eventually(lambda: log.said("waiting for 'order:42'"))
        for _ in range(20):
            clock.advance(1.0)
        assert not waits.result()
        assert len(log.said("waiting for")) == 1
        assert log.said("its holder is not known")
