"""export_many and adopt_many: each lock as by export and adopt, in a few round trips, with a result of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, Backend, of
from tests.support.background import in_thread
from tests.support.callers import Caller
from wheel_lock import InvalidHandoff, LockContext, LockNotHeld, LocksNotAdopted, TooManyLocks, WrongThread

pytestmark = pytest.mark.servers("real")

NAMES = [f"import:{number}" for number in range(8)]
MANY = [f"import:{number}" for number in range(700)]  # more names than are in flight at a time


def exported(context: LockContext, names: list[str] = NAMES, **terms: Any) -> dict[Any, str]:
    return of_texts(context.export_many(of(context.acquire_many(names, **terms))))


def of_texts(texts: Mapping[Any, str | None]) -> dict[Any, str]:
    found = {name: text for name, text in texts.items() if text is not None}
    assert len(found) == len(texts)
    return found


@BOTH
def test_many_locks_change_hands_without_a_gap(backend: Backend, me: Caller, other: LockContext) -> None:
    locks = me.do(lambda: me.locks._target.acquire_many(MANY, 30.0))
    tokens = {name: lock.token for name, lock in locks.items()}
    texts = me.do(lambda: me.locks._target.export_many(locks.values()))
    assert list(texts) == MANY
    assert not any(lock.is_held for lock in locks.values())
    assert me.context.stats().held == 0
    adopted = of(other.adopt_many(texts.values()))
    assert [lock.name for lock in adopted] == MANY
    for lock in adopted:
        assert lock.is_held
        assert lock.token != tokens[lock.name]
        assert backend.view.get(lock.name) == lock.token
    assert not any(in_thread(lambda: other.adopt_many(texts.values())).values())  # a text works once
    assert all(lock.is_held for lock in adopted)
    other.release_many(adopted)
    assert backend.view.keys() == []


def test_nothing_to_hand_over(context: LockContext) -> None:
    assert context.export_many([None]) == context.export_many([]) == {}
    assert context.adopt_many([None]) == {}


# Failures, name by name


def test_one_that_is_not_held_keeps_all_from_being_exported(context: LockContext) -> None:
    locks = of(context.acquire_many(NAMES))
    with pytest.raises(LockNotHeld):
        context.export_many([*locks, context.lock("another")])
    with pytest.raises(WrongThread), context.lock("another") as mine:
        in_thread(lambda: context.export_many([*locks, mine]))
    with pytest.raises(TypeError, match="only locks can be exported, not str"):
        context.export_many([*locks, "a"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="the name 'import:0'"):
        context.export_many([*locks, context.lock(NAMES[0])])
    assert all(lock.is_held for lock in locks)
    assert len(of_texts(context.export_many([*locks, *locks]))) == len(NAMES)  # each counts once


def test_texts_are_read_before_anything_is_sent(other: LockContext) -> None:
    texts = [*exported(other).values()]
    with LockContext(redis.Redis(port=1)) as context:
        wrong: Any
        for wrong in ([*texts, "no text"], [*texts, texts[0][:-1] + "x"], [*texts, []]):
            with pytest.raises(InvalidHandoff):
                context.adopt_many(wrong)
        with pytest.raises(TypeError, match="not one str"):
            context.adopt_many(texts[0])
        with pytest.raises(ValueError, match="on_lost"):
            context.adopt_many(texts, on_lost=5)  # type: ignore[arg-type]
        assert context.stats().connects == 0
    again = exported_again(other, texts)
    with pytest.raises(InvalidHandoff, match="Two of the texts are of the lock 'import:0'"):
        other.adopt_many([*texts, again])


def exported_again(context: LockContext, texts: list[str]) -> str:
    lock = context.adopt(texts[0])
    return lock.export()


@pytest.mark.settings(max_held=5)
def test_one_that_cannot_be_adopted_now_is_an_error_that_has_the_others(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    texts = exported(other)
    with pytest.raises(LocksNotAdopted, match="3 locks could not be adopted, among them 'import:5'") as caught:
        context.adopt_many(texts.values())
    assert {type(error) for error in caught.value.errors.values()} == {TooManyLocks}
    held: Any = caught.value.locks
    assert [name for name, lock in held.items() if lock is not None] == NAMES[:5]
    assert all(held[name].is_held for name in NAMES[:5])
    rest = of(other.adopt_many(texts[name] for name in caught.value.errors))  # these texts can still be used
    other.release_many(rest)
    context.release_many(held.values())
    assert backend.view.keys() == []
