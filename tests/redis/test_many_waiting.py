"""acquire_many that waits: each name in its own queue until a common time limit, or all of the names together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.support.backend import LONG_S, REFUSED_S, Backend, none_left, of
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import (
    LockContext,
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


def test_a_name_given_as_text_and_as_bytes_is_refused_before_anything_is_sent(context: LockContext) -> None:
    names: list[Any] = ["b", "a", b"a"]
    for all_or_nothing in (False, True):
        with pytest.raises(ValueError, match="'a' and b'a' are one"):
            context.acquire_many(names, blocking=True, all_or_nothing=all_or_nothing)
    with pytest.raises(ValueError, match="blocking_timeout"):
        context.acquire_many(["a"], blocking=True, blocking_timeout=-1)
    assert context.stats().connects == 0
