"""acquire_many that waits: each name in its own queue until a common time limit, or all of the names together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.support.backend import LONG_S, REFUSED_S, Backend, none_left, of
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import (
    ContextClosed,
    LockContext,
    LockServerError,
    LossReason,
    TooManyLocks,
)

pytestmark = pytest.mark.servers("real")

NAMES = [f"shard:{number}" for number in range(6)]


@pytest.fixture
def rival(other: LockContext) -> LockContext:
    """The context of another process, as it were, which is connected."""
    other.lock("warm-up").locked()
    return other


def missing(locks: Mapping[Any, Any]) -> list[Any]:
    return [name for name, lock in locks.items() if lock is None]


def waiting(context: LockContext, number: int) -> None:
    eventually(lambda: context.stats().waiting == number)


def test_a_refused_name_is_granted_when_it_is_released_and_the_others_are_held_meanwhile(
    backend: Backend, me: Caller, rival: LockContext
) -> None:
    theirs = of(rival.acquire_many(NAMES[2:4]))
    call = me.begin(lambda: me.locks._target.acquire_many(NAMES, blocking=True))
    waiting(me.context, 2)
    assert me.context.stats().held == 4
    rival.release_many(theirs)
    locks = call.result(LONG_S)
    assert list(locks) == NAMES
    assert {lock.name: backend.view.get(lock.name) for lock in of(locks)} == {
        lock.name: lock.token for lock in of(locks)
    }
    assert me.context.stats().waiting == 0
    me.do(lambda: me.locks._target.release_many(locks.values()))
    assert none_left(backend, me.context)


def test_names_that_are_not_released_in_time_are_none(backend: Backend, me: Caller, rival: LockContext) -> None:
    theirs = of(rival.acquire_many(NAMES[2:4]))
    call = me.begin(lambda: me.locks._target.acquire_many(NAMES, blocking=True, blocking_timeout=REFUSED_S))
    rival.release_many(theirs[:1])
    locks = call.result(LONG_S)
    assert missing(locks) == [NAMES[3]]
    assert me.context.stats().held == 5
    assert me.context.stats().waiting == 0
    rival.release_many(theirs[1:])
    me.do(lambda: me.locks._target.release_many(locks.values()))
    assert none_left(backend, me.context)


def test_without_blocking_or_without_time_nothing_is_waited_for(me: Caller, rival: LockContext) -> None:
    rival.acquire_many(NAMES[:1])
    terms: dict[str, Any]
    for terms in ({}, {"blocking_timeout": LONG_S}, {"blocking": True, "blocking_timeout": 0}):
        locks = me.do(partial(me.locks._target.acquire_many, NAMES, **terms))
        assert missing(locks) == NAMES[:1]
        me.do(partial(me.locks._target.release_many, locks.values()))
    assert me.do(lambda: me.locks._target.acquire_many([], blocking=True)) == {}
    assert me.do(lambda: me.locks._target.acquire_many([], blocking=True, all_or_nothing=True)) == {}


def test_a_lock_that_is_lost_while_others_are_waited_for_is_in_the_result(
    backend: Backend, me: Caller, rival: LockContext
) -> None:
    theirs = of(rival.acquire_many(NAMES[:1]))
    call = me.begin(lambda: me.locks._target.acquire_many(NAMES[:2], blocking=True, renew_every=0.05))
    backend.view.delete(NAMES[1])
    eventually(lambda: me.context.stats().lost == 1)
    rival.release_many(theirs)
    locks = call.result(LONG_S)
    assert locks[NAMES[0]].is_held
    assert locks[NAMES[1]].lost is LossReason.KEY_GONE


def test_a_name_given_as_text_and_as_bytes_is_refused_before_anything_is_sent(context: LockContext) -> None:
    names: list[Any] = ["b", "a", b"a"]
    for all_or_nothing in (False, True):
        with pytest.raises(ValueError, match="'a' and b'a' are one"):
            context.acquire_many(names, blocking=True, all_or_nothing=all_or_nothing)
    with pytest.raises(ValueError, match="blocking_timeout"):
        context.acquire_many(["a"], blocking=True, blocking_timeout=-1)
    assert context.stats().connects == 0


@pytest.mark.parametrize("all_or_nothing", [False, True])
def test_a_name_that_holds_data_ends_the_call_and_nothing_is_left(
    backend: Backend, context: LockContext, all_or_nothing: bool
) -> None:
    backend.view.rpush(NAMES[3], "data")
    with pytest.raises(LockServerError, match="WRONGTYPE"):
        context.acquire_many(NAMES, blocking=True, all_or_nothing=all_or_nothing)
    backend.view.delete(NAMES[3])
    waiting(context, 0)
    eventually(lambda: none_left(backend, context))


@pytest.mark.settings(max_held=5)
def test_more_locks_than_the_context_allows_are_refused(backend: Backend, context: LockContext) -> None:
    for all_or_nothing in (False, True):
        with pytest.raises(TooManyLocks):
            context.acquire_many(NAMES, blocking=True, all_or_nothing=all_or_nothing)
    eventually(lambda: none_left(backend, context))
    assert len(of(context.acquire_many(NAMES[:5], blocking=True))) == 5


@pytest.mark.parametrize("all_or_nothing", [False, True])
def test_the_end_of_the_context_ends_the_wait(me: Caller, rival: LockContext, all_or_nothing: bool) -> None:
    rival.acquire_many(NAMES[:1])
    call = me.begin(lambda: me.locks._target.acquire_many(NAMES, blocking=True, all_or_nothing=all_or_nothing))
    me.context.close()
    with pytest.raises(ContextClosed):
        call.result(LONG_S)


# Interruptions


def test_an_event_loop_that_is_closed_keeps_no_lock_of_a_task_that_was_not_cancelled(
    backend: Backend, context: LockContext, rival: LockContext
) -> None:
    theirs = of(rival.acquire_many(NAMES[1:]))
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(context.asyncio.acquire_many(NAMES, blocking=True))
    task._log_destroy_pending = False

    async def wait() -> None:
        while context.stats().waiting < len(theirs):
            await asyncio.sleep(0.001)

    loop.run_until_complete(wait())
    loop.close()
    assert backend.view.exists(NAMES[0])
    eventually(lambda: not backend.view.exists(NAMES[0]), LONG_S)
    assert not task.done()
    rival.release_many(theirs)
    assert none_left(backend, context)


# All or nothing


def test_all_together_hold_nothing_while_they_wait(backend: Backend, me: Caller, rival: LockContext) -> None:
    theirs = of(rival.acquire_many(NAMES[2:4]))
    call = me.begin(lambda: me.locks._target.acquire_many(NAMES, blocking=True, all_or_nothing=True))
    assert me.context.stats().held == 0
    assert len(backend.view.keys()) == 2
    for lock in theirs:
        rival.release_many([lock])
    locks = call.result(LONG_S)
    assert list(locks) == NAMES
    assert {lock.name: backend.view.get(lock.name) for lock in of(locks)} == {
        lock.name: lock.token for lock in of(locks)
    }
    me.do(lambda: me.locks._target.release_many(locks.values()))
    assert none_left(backend, me.context)


def test_all_together_are_none_when_the_time_is_up(backend: Backend, me: Caller, rival: LockContext) -> None:
    theirs = of(rival.acquire_many(NAMES[2:4]))
    call = me.begin(
        lambda: me.locks._target.acquire_many(NAMES, blocking=True, all_or_nothing=True, blocking_timeout=REFUSED_S)
    )
    rival.release_many(theirs[:1])
    assert call.result(LONG_S) == dict.fromkeys(NAMES)
    rival.release_many(theirs[1:])
    assert none_left(backend, me.context)
