"""What acquire_many returns is a dict to its callers, though its lock objects are made when they are asked for."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.backend import Backend
from tests.support.background import in_thread
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LocksLost, LossReason, WrongThread
from wheel_lock.testing import settle

pytestmark = pytest.mark.servers("real")

NAMES = ["shard:1", "shard:2", "shard:3"]
Locks = dict[str, Lock | None]


@pytest.fixture
def locks(context: LockContext, backend: Backend) -> Locks:
    backend.view.set("taken", "by another")
    return context.acquire_many([*NAMES, "taken"])


def made() -> int:
    gc.collect()
    return sum(isinstance(found, Lock) for found in gc.get_objects())


COPIES: list[Callable[[Any], Any]] = [
    dict,
    copy.copy,
    lambda locks: {**locks},
    lambda locks: locks.copy(),
    lambda locks: locks | {},
    lambda locks: {} | locks,
    lambda locks: (lambda **by_name: by_name)(**locks),
    lambda locks: dict(locks.items()),
    lambda locks: dict(zip(locks, locks.values(), strict=True)),
    lambda locks: dict(zip(locks.keys(), locks.items().mapping.values(), strict=True)),
    lambda locks: {name: locks.values().mapping[name] for name in locks},
    lambda locks: {name: locks.get(name) for name in locks},
    lambda locks: dict(reversed([*reversed(locks.items())])),
    lambda locks: dict(zip(locks, reversed([*reversed(locks.values())]), strict=True)),
]


@pytest.mark.parametrize("copied", COPIES)
def test_every_way_of_reading_it_finds_the_same_lock_objects(locks: Locks, copied: Callable[[Any], Any]) -> None:
    found = copied(locks)
    assert list(found) == [*NAMES, "taken"] == list(locks)
    assert type(found) is dict
    assert isinstance(locks, dict)
    assert all(type(found[name]) is Lock and found[name] is locks[name] for name in NAMES)
    assert all(found[name].name == name and found[name].is_held for name in NAMES)
    assert found["taken"] is locks["taken"] is locks.get("absent") is None
    assert (found == locks, locks == found, locks != found, locks == {}) == (True, True, False, False)
    assert (len(locks), "shard:1" in locks, "<Lock 'shard:1' held" in repr(locks)) == (4, True, True)
    with pytest.raises(KeyError):
        locks["absent"]
    with pytest.raises(TypeError):
        hash(locks)


def test_it_can_be_changed(locks: Locks, context: LockContext) -> None:
    assert locks.get("absent", 5) == 5
    assert repr(locks.values()).startswith("dict_values([<Lock 'shard:1'")
    assert repr(locks.items()).startswith("dict_items([('shard:1', <Lock 'shard:1'")
    first = locks["shard:1"]
    assert locks.pop("shard:1") is first
    assert locks.setdefault("shard:2") is locks["shard:2"]
    locks["shard:9"] = first
    locks |= {"shard:8": None}
    locks.update({"taken": first})
    assert list(locks) == ["shard:2", "shard:3", "taken", "shard:9", "shard:8"]
    assert locks["taken"] is locks["shard:9"] is first
    assert locks.popitem() == ("shard:8", None)
    del locks["taken"]
    context.release_many({lock for lock in locks.values() if lock is not None})
    locks.clear()
    assert locks == {}
    assert pickle.loads(pickle.dumps(locks)) == {}


def test_a_lock_object_that_was_asked_for_lives_on_and_the_rest_ends_with_the_result(
    context: LockContext, recwarn: pytest.WarningsRecorder
) -> None:
    locks = context.acquire_many(NAMES)
    kept = locks["shard:1"]
    assert kept is not None
    del locks
    eventually(lambda: [held.name for held in context.held()] == ["shard:1"])
    assert kept.is_held
    kept.release()
    assert context.stats().lost_by_reason[LossReason.ABANDONED] == 2


def test_so_does_one_that_is_taken_out_of_it(context: LockContext, recwarn: pytest.WarningsRecorder) -> None:
    locks = context.acquire_many(NAMES)
    del locks["shard:1"]
    locks["shard:2"] = None
    eventually(lambda: [held.name for held in context.held()] == ["shard:3"])
    context.release_many(locks)


ALL_AT_ONCE: list[Callable[[LockContext, Any], object]] = [
    lambda context, locks: context.release_many(locks),
    lambda context, locks: context.release_many(locks.values()),
    lambda context, locks: context.export_many(locks),
    lambda context, locks: context.export_many(locks.values()),
]


@pytest.mark.parametrize("end", ALL_AT_ONCE)
def test_no_lock_object_is_made_to_end_all(
    context: LockContext, backend: Backend, end: Callable[[LockContext, Any], object]
) -> None:
    before = made()
    locks = context.acquire_many(NAMES)
    assert context.stats().held == 3
    texts = end(context, locks)
    assert made() == before
    assert context.stats().held == 0
    if isinstance(texts, dict):
        adopted = context.adopt_many(texts.values())
        assert list(adopted) == NAMES
        context.release_many(adopted)
    assert backend.view.keys() == []
    assert not any(lock is None or lock.is_held for lock in locks.values())


def test_locks_by_name_in_any_mapping_are_released(me: Caller) -> None:
    context = me.locks._target
    for chosen in ({}, dict(me.do(lambda: context.acquire_many(NAMES))), me.do(lambda: context.acquire_many([b"a"]))):
        me.do(partial(context.release_many, chosen))
    by_lock = dict.fromkeys(me.do(lambda: context.acquire_many(NAMES)).values(), "a remark")
    me.do(lambda: context.release_many(by_lock))
    assert me.context.stats().held == 0


def test_a_lock_object_that_has_got_another_lease_meanwhile_counts(context: LockContext) -> None:
    locks = context.acquire_many(NAMES)
    first = locks["shard:1"]
    assert first is not None
    first.release()
    assert first.acquire()
    context.release_many(locks)
    assert not first.is_held
    assert context.stats().held == 0


def test_whose_they_are_and_whether_they_are_held_counts_as_for_lock_objects(
    context: LockContext, other: LockContext, backend: Backend
) -> None:
    mine = context.acquire_many(NAMES, thread_local=True)
    for end in (context.release_many, context.export_many):
        with pytest.raises(WrongThread):
            in_thread(partial(end, mine))
    context.release_many(mine)
    locks = context.acquire_many(NAMES)
    for end in (other.release_many, other.export_many):
        with pytest.raises(ValueError, match="another context"):
            end(locks)
    backend.view.delete("shard:2")
    with pytest.raises(LocksLost):
        context.release_many(locks)
    with pytest.raises(LocksLost) as again:
        context.release_many({"shard:2": locks["shard:2"]})
    assert again.value.losses == {"shard:2": LossReason.KEY_GONE}


@pytest.mark.parametrize("reads", [lambda locks: locks["shard:1"], lambda locks: locks.copy()["shard:1"]])
@pytest.mark.parametrize("reads_meanwhile", [lambda locks: locks["shard:1"], lambda locks: locks.copy()["shard:1"]])
def test_what_reads_while_a_lock_object_is_made_gets_the_only_one(
    context: LockContext, reads: Callable[[Any], Any], reads_meanwhile: Callable[[Any], Any]
) -> None:
    locks: Any = context.acquire_many(NAMES)
    new_lock, found = locks._new_lock, []

    def interrupted(name: str) -> Any:
        locks._new_lock = new_lock
        found.append(reads_meanwhile(locks))
        return new_lock(name)

    locks._new_lock = interrupted
    assert reads(locks) is found[0] is locks["shard:1"]
    gc.collect()
    settle(context.timer)
    assert all(lock.is_held for lock in locks.values())
    context.release_many(locks)
