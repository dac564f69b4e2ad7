"""The context: what it counts, what it shows, how it is shared, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, Backend, Losses
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, HeldLock, Lock, LockContext, LockLost, LossReason

pytestmark = pytest.mark.servers("real")

# stats() and held()


@BOTH
def test_what_is_held_is_shown_in_order_of_acquisition(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    first = context.lock("b", timeout=30.0)
    first.acquire()
    clock.advance(15.0)
    second = context.lock(b"\xffa", timeout=20.0, renew=False)
    second.acquire()
    clock.advance(1.0)
    shown = context.held()
    assert [lock.name for lock in shown] == ["b", b"\xffa"]
    assert [lock.timeout_s for lock in shown] == [30.0, 20.0]
    assert [lock.age_s for lock in shown] == pytest.approx([16.0, 1.0], abs=0.01)
    assert [lock.renewals for lock in shown] == [1, 0]
    assert [lock.remaining_s for lock in shown] == pytest.approx([first.remaining(), second.remaining()])
    assert not any(lock.overdue for lock in shown)
    assert isinstance(shown[0], HeldLock)
    first.release()
    assert [lock.name for lock in context.held()] == [b"\xffa"]
    clock.advance(20.0)
    assert context.held() == []


# close()


@BOTH
def test_closing_releases_what_is_held_and_notifies_its_holders(backend: Backend) -> None:
    context = backend.context()
    losses = Losses()
    lock = context.lock("order:42", on_lost=losses)
    lock.acquire()
    bulk = context.acquire_many([f"shard:{number}" for number in range(1200)], on_lost=losses)
    taken = context.lock("taken")
    taken.acquire()
    backend.view.set("taken", "theirs")
    context.close()
    assert context.closed
    assert backend.view.keys() == [b"taken"]
    assert not lock.is_held
    assert lock.lost is LossReason.CONTEXT_CLOSED
    events = losses.delivered()
    assert len(events) == 1201
    assert {event.reason for event in events} == {LossReason.CONTEXT_CLOSED}
    with pytest.raises(LockLost):
        lock.release()
    assert not any(one.is_held for one in bulk.values() if one is not None)
    assert context.held() == []


def test_a_context_can_leave_its_locks_to_expire(backend: Backend) -> None:
    context = backend.context(release_on_close=False)
    losses = Losses()
    lock = context.lock("order:42", timeout=30.0, renew_every=0.1, on_lost=losses)
    lock.acquire()
    context.close()
    assert not lock.is_held
    left_ms = backend.view.pttl("order:42")
    assert left_ms > 0
    assert [event.reason for event in losses.delivered()] == [LossReason.CONTEXT_CLOSED]
    eventually(lambda: backend.view.pttl("order:42") < left_ms - 400, LONG_S, "it is not renewed")


def test_a_closed_context_refuses_work(backend: Backend) -> None:
    context = backend.context()
    lock = context.lock("order:42")
    context.close()
    for call in (lock.acquire, lock.locked, lambda: context.acquire_many(["a"]), lambda: context.lock("b").acquire()):
        with pytest.raises(ContextClosed):
            call()
    assert "closed" in repr(context)


def test_a_close_timeout_that_cannot_work_is_refused(context: LockContext) -> None:
    with pytest.raises(ValueError, match="timeout"):
        context.close(timeout=-1)
    assert not context.closed


# One context for a whole process


def test_a_client_has_one_shared_context(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    shared = LockContext.shared(client)
    assert LockContext.shared(client) is shared
    assert LockContext.shared(other) is not shared
    with shared.lock("order:42"):
        assert backend.view.exists("order:42")
    asking = [Background(lambda: LockContext.shared(client)) for _ in range(16)]
    assert {id(one.result()) for one in asking} == {id(shared)}
    shared.close()
    anew = LockContext.shared(client)
    assert anew is not shared
    with anew.lock("order:42"):
        pass
    for context in (anew, LockContext.shared(other)):
        context.close()


# A connection of its own


def test_a_context_uses_none_of_its_clients_connections(real: Backend) -> None:
    pool = redis.BlockingConnectionPool(host="127.0.0.1", port=real.port, max_connections=1, timeout=0.1)
    client = redis.Redis(connection_pool=pool)
    context = real.context_of(client)
    blocked = pool.get_connection()  # the only one there is
    with pytest.raises(redis.ConnectionError):
        client.ping()
    with context.lock("order:42", timeout=3.0, renew_every=0.1) as lock:
        eventually(lambda: lock.renewals >= 2, LONG_S)
    pool.release(blocked)
    assert client.ping()


@pytest.mark.parametrize("use", [Lock.locked, Lock.__enter__], ids=["asked", "held"])
def test_a_lock_object_that_outlives_its_context_leaves_no_connection(
    real: Backend, use: Callable[[Lock], Any]
) -> None:
    lock = LockContext(real.client(client_name="outlived"), timer=real.timer()).lock("order:42")  # no thread runs yet
    use(lock)
    if lock.is_held:
        lock.release()
    eventually(lambda: "outlived" not in [client["name"] for client in real.view.client_list()])


class Awaited:
    """A callback that is an object with a coroutine function."""

    async def __call__(self, event: Any) -> None: ...


async def awaited(event: Any) -> None: ...


@pytest.mark.parametrize("callback", [awaited, partial(awaited), Awaited()], ids=["function", "partial", "object"])
def test_a_thread_cannot_await_a_callback_of_any_factory(callback: Any) -> None:
    def locked(context: Any) -> Any:
        return context.locked("order:42", on_lost=callback)

    factories: list[Callable[[LockContext], object]] = [
        lambda context: context.lock("order:42", on_lost=callback),
        lambda context: context.reentrant_lock("order:42", on_lost=callback),
        lambda context: context.rw_lock("order:42", on_lost=callback),
        lambda context: context.fair_lock("order:42", on_lost=callback),
        lambda context: context.semaphore("order:42", 2, on_lost=callback),
        lambda context: context.multi_lock(["order:42"], on_lost=callback),
        lambda context: context.acquire_many(["order:42"], on_lost=callback),
        lambda context: context.adopt("", on_lost=callback),
        lambda context: context.adopt_many([], on_lost=callback),
        lambda context: locked(context)(print),
    ]
    with LockContext(redis.Redis(port=1)) as context:
        for make in factories:
            with pytest.raises(ValueError, match="on_lost must be a plain function"):
                make(context)
        locked(context)(awaited)


async def test_what_is_used_in_the_wrong_way_names_the_right_one(context: LockContext) -> None:
    decorator: Any = context.locked("order:42")
    with pytest.raises(TypeError, match=r"context\.lock\('order:42'\)\.locked\(\)"):
        bool(decorator)
    for face in (context, context.asyncio):
        both: Any = face.rw_lock("order:42")
        with pytest.raises(TypeError, match=r"enter its \.read\(\) or its \.write\(\)"), both:
            pass
        with pytest.raises(TypeError, match=r"enter its \.read\(\) or its \.write\(\)"):
            async with both:
                pass
    assert repr(context.asyncio) == f"<AsyncContext of {context!r}>"
    assert "in_bulk" not in dir(context.lock("order:42"))
    assert "acquire" in dir(context.lock("order:42"))
