"""Handoff: one caller gives up a lock without a release, another takes over the rest of the lease, on the same terms."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, Backend, of, token_of
from tests.support.background import in_thread
from tests.support.callers import Caller
from tests.support.interruptions import Interruption, at_every_place
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import (
    InvalidHandoff,
    Lock,
    LockContext,
    LockNotAcquired,
    LockNotHeld,
    LocksNotAdopted,
    LossReason,
    TooManyLocks,
    WheelLockError,
    WrongThread,
)

pytestmark = pytest.mark.servers("real")

NAME = "import:2026"


# The exporter lets go


def test_the_exporter_neither_holds_nor_renews_nor_releases(backend: Backend, context: LockContext) -> None:
    lock = context.lock(NAME, timeout=20.0, renew_every=0.1)
    lock.acquire()
    token = token_of(lock)
    lock.export()
    renewals = lock.renewals
    assert not lock.is_held
    assert lock.token is None
    assert lock.lost is None
    assert lock.remaining() == 0.0
    assert repr(lock) == f"<Lock '{NAME}' not held>"
    assert context.held() == []
    for call in (lock.release, lock.export, lock.reacquire, lambda: context.release_many([lock])):
        with pytest.raises(LockNotHeld, match="it was handed over"):
            call()
    with pytest.raises(LockNotHeld):
        lock.raise_if_lost()
    assert backend.view.get(NAME) == token  # it is there still, for an adopter
    left_ms = backend.view.pttl(NAME)
    eventually(lambda: backend.view.pttl(NAME) < left_ms - 400)  # and not renewed
    assert lock.renewals == renewals
    assert context.stats().lost == 0


# The adopter takes over


def test_the_first_block_of_an_adopted_lock_finds_it_acquired(context: LockContext, lock: Lock) -> None:
    with context.adopt(lock.export()) as adopted:
        assert adopted.is_held
    assert not adopted.is_held
    with adopted:  # the second acquires it as usual
        assert adopted.is_held
    assert not adopted.is_held


def test_one_of_two_threads_that_share_an_adopted_lock_enters_with_it(context: LockContext, lock: Lock) -> None:
    adopted = context.adopt(lock.export(), thread_local=False)
    lease = adopted._lease
    assert lease is not None
    entered: list[bool] = []

    def enter() -> bool:
        return adopted._enters_adopted()

    def scene(interruption: Interruption) -> None:
        entered.clear()
        adopted._take_adopted(lease)
        interruption.begin()
        entered.append(enter())
        interruption.end()

    for where in at_every_place(scene, meanwhile=lambda: entered.append(in_thread(enter)), raises=False):
        assert sum(entered) == 1, where
    adopted.release()


def test_a_lock_whose_token_the_caller_has_chosen_cannot_be_handed_over(context: LockContext) -> None:
    lock = context.lock(NAME)
    lock.acquire(token="host-1")
    with pytest.raises(WheelLockError, match="token that others may have"):
        lock.export()
    assert lock.is_held
    lock.release()


# Its terms go with it


@BOTH
def test_timeout_and_interval_go_with_it(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    lock = context.lock(NAME, timeout=20.0, renew_every=1.5)
    lock.acquire()
    adopted = context.adopt(lock.export())
    clock.advance(7.0)
    assert adopted.renewals == 4
    lock = context.lock("not renewed", timeout=20.0, renew=False)
    lock.acquire()
    adopted = context.adopt(lock.export())
    clock.advance(21.0)
    assert (adopted.renewals, adopted.lost) == (0, LossReason.RENEWAL_LIMIT)


# Who adopts


def test_a_name_that_is_set_meanwhile_is_not_that_of_the_text(context: LockContext, lock: Lock) -> None:
    lock.name = "another"  # from the next acquire on
    assert context.adopt(lock.export()).name == NAME


def test_a_thread_adopts_for_itself_by_default(context: LockContext, lock: Lock) -> None:
    text = lock.export()
    adopted = in_thread(lambda: context.adopt(text, thread_local=False))
    text = adopted.export()  # any thread may: it belongs to none
    adopted = in_thread(lambda: context.adopt(text))
    with pytest.raises(WrongThread):
        adopted.release()


def test_threads_and_tasks_hand_over_to_each_other(backend: Backend, context: LockContext, lock: Lock) -> None:
    fence = lock.fence
    tasks = backend.context().asyncio

    async def pass_on(text: str) -> str:
        in_task = await tasks.adopt(text)
        assert in_task.is_held
        in_task = await tasks.adopt(await in_task.export(), thread_local=False)
        assert in_task.fence == fence
        return await in_task.export()

    with context.adopt(asyncio.run(pass_on(lock.export()))) as adopted:
        assert adopted.fence == fence


# What an adoption needs


def test_an_adoption_after_max_hold_is_none(real: Backend, proxy: TcpProxy) -> None:
    lock = real.context().lock(NAME, timeout=20.0, max_hold=1.2)
    assert lock.acquire()
    context = real.context_through(proxy, timer=real.timer())
    proxy.to_server.delay_s = 0.3
    with pytest.raises(LockNotAcquired):
        context.adopt(lock.export())
    proxy.to_server.delay_s = 0.0
    eventually(lambda: not real.view.exists(NAME), LONG_S)


# Many: each lock as by export and adopt, in a few round trips, with a result of its own


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
