"""The result of a bulk acquire is a dict in all respects; its locks are made when they are read, and are the same after."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend, without_collection
from tests.support.background import in_thread
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockNotHeld, LossReason, WrongThread
from wheel_lock.lease import Lease
from wheel_lock.locks.acquired import AcquiredLocks
from wheel_lock.testing import settle

pytestmark = pytest.mark.servers("real")

NAMES = ["a", "b", "c"]


def made(locks: dict[str, Lock | None]) -> int:
    """The number of lock objects that have been made."""
    assert isinstance(locks, AcquiredLocks)
    return sum(isinstance(stored, Lock) for stored in locks.stored_values())


@pytest.fixture
def locks(context: LockContext, real: Backend) -> dict[str, Lock | None]:
    real.view.set("taken", "theirs")
    locks = context.acquire_many([*NAMES, "taken"])
    assert made(locks) == 0
    return locks


def passed(**locks: Any) -> dict[str, Any]:
    return locks


WAYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "get": lambda locks: {name: locks.get(name) for name in locks},
    "subscription": lambda locks: {name: locks[name] for name in locks},
    "items": lambda locks: list(locks.items()),
    "items reversed": lambda locks: list(reversed(locks.items()))[::-1],
    "values": lambda locks: list(locks.values()),
    "values reversed": lambda locks: list(reversed(locks.values()))[::-1],
    "values twice": lambda locks: [*(view := locks.values()), *view],
    "mapping": lambda locks: dict(locks.items().mapping),
    "dict": dict,
    "display": lambda locks: {**locks},
    "keywords": lambda locks: passed(**locks),
    "copy": lambda locks: locks.copy(),
    "copy.copy": copy.copy,
    "or": lambda locks: locks | {"other": 1},
    "ror": lambda locks: {"other": 1} | locks,
    "update of another": lambda locks: [other := {}, other.update(locks), other][2],
    "setdefault": lambda locks: [locks.setdefault(name, 5) for name in [*locks, "new"]],
    "pop": lambda locks: [locks.pop(name, 5) for name in [*locks, "new"]],
    "popitem": lambda locks: [locks.popitem() for _ in range(len(locks))],
    "len": len,
    "in": lambda locks: ["a" in locks, "x" in locks],
    "in values": lambda locks: [locks["b"] in locks.values(), None in locks.values(), 5 in locks.values()],
    "in items": lambda locks: [("b", locks["b"]) in locks.items(), ("b", None) in locks.items()],
    "sorted keys": lambda locks: sorted(locks.keys() & {"a", "taken"}),
    "set of items": lambda locks: len(locks.items() | {("x", 1)}),
    "get another": lambda locks: locks.get("x", 7),
    "reversed": lambda locks: list(reversed(locks)),
    "fromkeys": lambda locks: locks.fromkeys("xy"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_is_what_a_dict_would_give(locks: dict[str, Any], way: str) -> None:
    """Read before the locks have been made, and compared with what the same does to a dict of them."""
    lazily = WAYS[way](locks)
    if way in ("pop", "popitem", "setdefault"):  # after which there is less, or more, to compare
        assert not any(Lease in (type(item), type(item[-1]) if isinstance(item, tuple) else None) for item in lazily)
        return
    plain = WAYS[way](dict(locks))
    assert lazily == plain
    assert type(lazily) is type(plain)


def test_it_is_equal_to_a_dict_of_the_same_locks(locks: dict[str, Any]) -> None:
    plain = dict(locks)
    assert locks == plain
    assert plain == locks
    assert (locks != plain) is False
    assert locks != {**plain, "a": None}
    assert locks != {"a": plain["a"]}
    assert locks != 5
    assert repr(locks) == repr(plain)
    assert repr(locks.values()) == repr(plain.values())
    assert repr(locks.items()) == repr(plain.items())
    assert isinstance(locks, dict)
    with pytest.raises(TypeError, match="unhashable"):
        hash(locks)


def test_a_lock_is_made_once(locks: dict[str, Any]) -> None:
    [first, *_] = locks.values()
    assert first is locks["a"] is locks.get("a") is dict(locks)["a"]
    assert first.name == "a"
    assert first.is_held


def test_threads_that_read_at_once_have_the_same_lock(context: LockContext) -> None:
    names = [f"shard:{number}" for number in range(500)]
    locks = context.acquire_many(names)
    readers = [in_thread(lambda: list(locks.values())) for _ in range(4)]
    assert all(read == readers[0] for read in readers)
    settle(context.timer)
    assert context.stats().lost == 0
    context.release_many(locks.values())


def test_it_cannot_be_pickled_as_locks_cannot(locks: dict[str, Any]) -> None:
    for act in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            act(locks)


def test_releasing_the_view_makes_no_lock(context: LockContext, real: Backend, locks: dict[str, Any]) -> None:
    context.release_many(locks.values())
    assert made(locks) == 0
    assert real.view.keys() == [b"taken"]
    assert not locks["a"].is_held
    with pytest.raises(LockNotHeld):
        locks["b"].release()
    with pytest.raises(LockNotHeld):
        context.release_many(locks.values())


def test_releasing_some_that_are_made_and_some_that_are_not(
    context: LockContext, real: Backend, locks: dict[str, Any]
) -> None:
    locks["b"].release()
    with pytest.raises(LockNotHeld):
        context.release_many(locks.values())
    del locks["b"]
    context.release_many(locks.values())
    assert real.view.keys() == [b"taken"]


def test_those_of_a_thread_are_released_by_that_thread_only(context: LockContext) -> None:
    locks = in_thread(lambda: context.acquire_many(NAMES, thread_local=True))
    with pytest.raises((WrongThread, LockNotHeld)):
        context.release_many(locks.values())


@pytest.mark.parametrize("way", ["dropped", "cleared", "deleted", "replaced", "updated", "popped"])
def test_one_that_nobody_can_release_any_more_is_abandoned(context: LockContext, way: str) -> None:
    locks: dict[str, Any] = context.acquire_many(NAMES)
    kept = locks["b"]
    with pytest.warns(ResourceWarning, match="abandoned"), without_collection():
        if way == "dropped":
            del locks
        elif way == "cleared":
            locks.clear()
        elif way == "deleted":
            for name in ("a", "c"):
                del locks[name]
        elif way == "popped":
            for name in ("a", "c"):
                locks.pop(name)
        elif way == "replaced":
            for name in ("a", "c"):
                locks[name] = None
        else:
            locks |= {"a": None}
            locks.update(c=None)
        eventually(lambda: context.stats().held == 1, LONG_S)
        settle(context.timer)
    assert kept.is_held
    assert context.stats().lost_by_reason[LossReason.ABANDONED] == 2
    kept.release()


def test_after_a_release_nothing_is_abandoned(context: LockContext) -> None:
    locks = context.acquire_many(NAMES)
    context.release_many(locks.values())
    del locks
    settle(context.timer)
    assert context.stats().lost == 0


async def test_it_is_the_same_for_tasks(context: LockContext) -> None:
    tasks = context.asyncio
    locks = await tasks.acquire_many(NAMES)
    assert [lock is not None and lock.is_held for lock in locks.values()] == [True] * 3
    more = await tasks.acquire_many(["d"])
    await tasks.release_many([*locks.values()])
    await tasks.release_many(more.values())
    assert context.stats().held == 0


def test_objects_per_lock_that_are_left_to_the_collector(context: LockContext) -> None:
    """One, its lease; two once the lock has been read. What there is for each part of a bulk is shared by many."""
    number = 3000
    names = [f"shard:{number}" for number in range(number)]
    context.release_many(context.acquire_many(names).values())  # what is made once is made

    def tracked() -> int:
        settle(context.timer)
        gc.collect()
        return len(gc.get_objects())

    before = tracked()
    locks = context.acquire_many(names, timeout=300.0)
    unread = tracked() - before
    assert number <= unread <= 1.2 * number  # and a list for each tick of the wheel
    every = [lock for lock in locks.values() if lock is not None]
    assert len(every) == number
    assert tracked() - before <= 2.2 * number
    context.release_many(locks.values())


def test_bytes_per_lock_that_is_held_and_has_been_read(context: LockContext) -> None:
    """Lease, lock object, and their places in the wheel, in what is held, and in the result; but not the caller's name."""
    number = 10_000
    names = [f"shard:{number}" for number in range(number)]
    context.release_many(context.acquire_many(names[:10]).values())
    settle(context.timer)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        locks = context.acquire_many(names, timeout=300.0)
        assert all(lock is not None for lock in locks.values())
        settle(context.timer)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / number <= 450
    context.release_many(locks.values())
