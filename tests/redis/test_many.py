"""acquire_many and release_many: many names in few calls, each on its own or all together, at once or waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, Backend, Losses, none_left, token_of
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockServerError, LocksLost, LossReason
from wheel_lock.asyncio import Lock
from wheel_lock.locks.bulk import BulkAcquire
from wheel_lock.testing import settle

pytestmark = pytest.mark.servers("real")


def held(locks: Mapping[Any, Any]) -> list[Any]:
    return [lock for lock in locks.values() if lock is not None]


def release_many(caller: Caller, locks: Iterable[Any]) -> None:
    caller.locks.release_many([lock and lock._target for lock in locks])


@BOTH
def test_many_locks_are_acquired_and_released(backend: Backend, me: Caller) -> None:
    names = [f"shard:{number}" for number in range(60)]
    locks = me.locks.acquire_many(names, timeout=30.0)
    assert list(locks) == names
    assert len(held(locks)) == 60
    for lock in held(locks):
        assert lock.is_held
        assert backend.view.get(lock.name) == token_of(lock)
        assert 20_000 < backend.view.pttl(lock.name) <= 30_000
    assert len({token_of(lock) for lock in held(locks)}) == 60
    release_many(me, locks.values())
    assert backend.view.keys() == []
    assert not any(lock.is_held for lock in held(locks))


@pytest.mark.parametrize("face", ["threads", "tasks"])
async def test_an_iterable_that_raises_half_way_has_nothing_released(context: LockContext, face: str) -> None:
    """Also one that could be read on, as an interruption in what it calls leaves it."""

    def interrupted_at_b(lock: Any) -> Any:
        if lock.name == "b":
            raise KeyboardInterrupt
        return lock

    async def release_many(locks: Any) -> None:
        if face == "threads":
            context.release_many(locks)
        else:
            await context.asyncio.release_many(locks)

    made: Any = (await context.asyncio.acquire_many([*"abc"])) if face == "tasks" else context.acquire_many([*"abc"])
    locks = list(made.values())
    for iterable in (map(interrupted_at_b, locks), (interrupted_at_b(lock) for lock in locks)):
        with pytest.raises(KeyboardInterrupt):
            await release_many(iterable)
        settle(context.timer)
        assert [lock.is_held for lock in locks] == [True] * 3
    await release_many(lock for lock in locks)
    assert context.stats().held == 0


@BOTH
def test_names_that_others_hold_are_none(backend: Backend, me: Caller) -> None:
    backend.view.set("shard:1", "theirs")
    backend.view.rpush("shard:3", "another type")
    locks = me.locks.acquire_many([f"shard:{number}" for number in range(5)])
    assert [name for name, lock in locks.items() if lock is None] == ["shard:1", "shard:3"]
    release_many(me, locks.values())  # what is None is passed over
    assert sorted(backend.view.keys()) == [b"shard:1", b"shard:3"]
    assert backend.view.get("shard:1") == b"theirs"


def test_a_name_that_is_given_twice_counts_once(me: Caller) -> None:
    locks = me.locks.acquire_many(["a", "b", "a", "a"])
    assert list(locks) == ["a", "b"]
    assert len(held(locks)) == 2
    assert me.context.stats().acquired == 2
    release_many(me, locks.values())


@pytest.mark.parametrize("all_or_nothing", [False, True])
def test_without_names_or_with_wrong_ones_nothing_is_sent(all_or_nothing: bool) -> None:
    with LockContext(redis.Redis(port=1)) as context:
        assert context.acquire_many([], all_or_nothing=all_or_nothing) == {}
        context.release_many([])
        context.release_many([None, None])
        wrong: dict[str, Any]
        for wrong in ({"timeout": 0}, {"renew_every": 30.0}, {"max_hold": -1}, {"on_lost": 5}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                context.acquire_many(["good"], all_or_nothing=all_or_nothing, **wrong)
        with pytest.raises(ValueError, match="a lock name must have"):
            context.acquire_many(["good", ""], all_or_nothing=all_or_nothing)
        assert context.stats().connects == 0


@pytest.mark.parametrize("text", ["abc", b"abc", ""])
def test_one_text_is_not_taken_for_the_names_of_its_letters(text: Any) -> None:
    with LockContext(redis.Redis(port=1)) as context:
        with pytest.raises(TypeError, match=f"names must be several names, not one {type(text).__name__}"):
            context.acquire_many(text)
        with pytest.raises(TypeError, match="names must be several names"):
            asyncio.run(context.asyncio.acquire_many(text))


@pytest.mark.parametrize("thing", [5, "order:42", b"order:42", object()], ids=lambda thing: type(thing).__name__)
def test_what_is_no_lock_has_nothing_released(backend: Backend, context: LockContext, thing: Any) -> None:
    locks = held(context.acquire_many(["a", "b"]))
    with pytest.raises(TypeError, match=f"only locks can be released in bulk, not {type(thing).__name__}"):
        context.release_many([*locks, thing])
    assert all(lock.is_held for lock in locks)
    with pytest.raises(TypeError, match="not MultiLock"):
        context.release_many([*locks, context.multi_lock(["c"])])  # type: ignore[list-item]
    context.release_many(locks)
    assert backend.view.keys() == []


@BOTH
def test_releasing_many_returns_which_were_lost_and_releases_the_others(backend: Backend, me: Caller) -> None:
    losses = Losses()
    locks = me.locks.acquire_many([f"shard:{number}" for number in range(6)], on_lost=losses)
    backend.view.delete("shard:1")
    backend.view.set("shard:2", "theirs")
    backend.view.delete("shard:3")
    backend.view.rpush("shard:3", "another type")
    with pytest.raises(LocksLost) as caught:
        release_many(me, locks.values())
    expected = {"shard:1": LossReason.KEY_GONE, "shard:2": LossReason.TAKEN, "shard:3": LossReason.TAKEN}
    assert caught.value.losses == expected
    assert isinstance(caught.value, LockLost)
    assert "3 locks" in str(caught.value)
    assert sorted(backend.view.keys()) == [b"shard:2", b"shard:3"]
    eventually(lambda: len(losses.delivered()) == 3, LONG_S)
    assert {event.name: event.reason for event in losses.delivered()} == expected
    assert me.context.stats().released == 3
    assert me.context.stats().lost == 3


# All or nothing


def test_an_error_about_one_name_undoes_the_others(fresh: Backend) -> None:
    fresh.view.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~shard:*", "&*", "+@all")
    context = fresh.context_of(fresh.client(username="app", password="secret"))
    with pytest.raises(LockServerError) as caught:
        context.acquire_many(["shard:1", "forbidden", "shard:2"])
    assert caught.value.lock_name == "forbidden"
    eventually(lambda: not fresh.view.keys(), LONG_S, "the others are released")
    assert context.stats().held == 0


@BOTH
def test_all_are_acquired_or_none_and_what_is_taken_stays(backend: Backend, me: Caller) -> None:
    names = [f"shard:{number}" for number in range(50)]
    for taken in (names[0], names[25], names[-1]):
        backend.view.set(taken, "another", px=60_000)
        assert me.locks.acquire_many(names, all_or_nothing=True) == dict.fromkeys(names)
        assert backend.view.keys() == [taken.encode()]  # at once: all has been undone by now
        assert backend.view.get(taken) == b"another"
        assert backend.view.pttl(taken) > 50_000
        assert me.context.stats().held == 0
        backend.view.delete(taken)
    locks = me.locks.acquire_many(names + names[:5], all_or_nothing=True)
    assert list(locks) == names
    assert {name: backend.view.get(name) for name in names} == {lock.name: lock.token for lock in held(locks)}
    release_many(me, locks.values())


# Waiting for each of them


NAMES = [f"shard:{number}" for number in range(6)]


@pytest.fixture
def rival(other: LockContext) -> LockContext:
    """The context of another process, as it were, which is connected."""
    other.lock("warm-up").locked()
    return other


def missing(locks: Mapping[Any, Any]) -> list[Any]:
    return [name for name, lock in locks.items() if lock is None]


def test_a_refused_name_is_granted_when_it_is_released_and_the_others_are_held_meanwhile(
    backend: Backend, me: Caller, rival: LockContext
) -> None:
    theirs = held(rival.acquire_many(NAMES[2:4]))
    call = me.begin(lambda: me.locks._target.acquire_many(NAMES, blocking=True))
    eventually(lambda: me.context.stats().waiting == 2)
    assert me.context.stats().held == 4
    rival.release_many(theirs)
    locks = call.result(LONG_S)
    assert list(locks) == NAMES
    assert {lock.name: backend.view.get(lock.name) for lock in held(locks)} == {
        lock.name: lock.token for lock in held(locks)
    }
    assert me.context.stats().waiting == 0
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
    with pytest.raises(ValueError, match="a limit is blocking_timeout=5"):
        context.acquire_many(["a"], blocking=5.0)  # type: ignore[arg-type]
    assert context.stats().connects == 0


# Tasks


both_loops = pytest.mark.loops("asyncio", "uvloop")
MANY = [f"shard:{number}" for number in range(4500)]  # more names than one part of a bulk acquire


@both_loops
async def test_other_tasks_run_while_the_locks_are_made(context: LockContext, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, turns_until_made = 0, 0
    hand_over = BulkAcquire.submit

    def counted(many: BulkAcquire[str, Lock]) -> Iterator[None]:
        nonlocal turns_until_made
        yield from hand_over(many)
        turns_until_made = turns

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(BulkAcquire, "submit", counted)
    turning = asyncio.create_task(turn())
    locks = await context.asyncio.acquire_many(MANY)
    turning.cancel()
    assert turns_until_made == 2  # one after each part
    await context.asyncio.release_many(locks.values())


@both_loops
async def test_locks_in_bulk_belong_to_no_task_by_default(context: LockContext) -> None:
    tasks = context.asyncio
    locks = await asyncio.create_task(tasks.acquire_many(["a", "b"]))
    await asyncio.create_task(tasks.release_many(locks.values()))
    locks = await asyncio.create_task(tasks.acquire_many(["a", "b"], thread_local=True))
    await tasks.release_many(locks.values())  # nor are they kept from others that know of them
    assert context.stats().held == 0
