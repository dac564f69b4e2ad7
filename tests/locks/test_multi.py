"""Several locks as one: all or none, nothing held while waiting, no deadlock."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.backend import LONG_S, Backend, Losses
from tests.support.background import Background, in_thread
from tests.support.callers import Caller, NewCaller
from tests.support.event_loops import Run, ended, until, waiting
from tests.support.lock_types import deaf, listening
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LockServerError,
    LocksLost,
    LossReason,
    TooManyLocks,
    WrongThread,
)

pytestmark = pytest.mark.servers("real")

NAMES = ("a", "b", "c")


def test_all_are_held_inside_with_and_free_after_it(backend: Backend, me: Caller) -> None:
    with me.locks.multi_lock(["c", "a", b"b", "a"]) as lock:
        assert lock.names == ("a", b"b", "c")
        assert lock.is_held
        tokens = {name: one.token for name, one in lock.locks.items()}
        assert {name: backend.view.get(name) for name in lock.names} == tokens
        assert len(set(tokens.values())) == 3
        assert all(0 < backend.view.pttl(name) <= 30_000 for name in NAMES)
        assert 29.0 < lock.remaining() <= 30.0
        assert me.context.stats().held == 3
        lock.raise_if_lost()
        with pytest.raises(LockAlreadyHeld):
            lock.acquire()
    assert not lock.is_held
    assert lock.remaining() == 0.0
    assert backend.view.dbsize() == 0
    for change in (lock.release, lock.raise_if_lost):
        with pytest.raises(LockNotHeld):
            change()


def test_data_under_one_of_the_names_is_an_error(backend: Backend, context: LockContext) -> None:
    backend.view.rpush("b", "something else")
    with pytest.raises(LockServerError, match=r"list.*\(lock 'b'\)"):
        context.multi_lock(NAMES).acquire(blocking=False)
    assert backend.view.keys() == [b"b"]


def test_each_of_them_excludes_the_plain_lock_of_its_name(context: LockContext, other: LockContext) -> None:
    with context.multi_lock(NAMES):
        for name in NAMES:
            assert not other.lock(name).acquire(blocking=False)
            assert not context.fair_lock(name).acquire(blocking=False)
        assert other.acquire_many(["b", "d"], all_or_nothing=True) == {"b": None, "d": None}
    with other.lock("b"):
        assert not context.multi_lock(NAMES).acquire(blocking=False)


def test_it_belongs_to_its_thread(context: LockContext) -> None:
    with context.multi_lock(NAMES) as lock:
        with pytest.raises(WrongThread):
            in_thread(lock.release)
        assert in_thread(lambda: lock.is_held)
        assert not in_thread(lambda: lock.acquire(blocking=False))
        assert lock.is_held


# Waiting


def test_it_waits_for_the_one_that_blocks_and_then_for_another_holding_nothing_meanwhile(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    lock = new_caller(waiter).locks.multi_lock(NAMES, blocking_timeout=LONG_S)
    first, second = context.lock("a"), context.lock("c")
    first.acquire()
    second.acquire()
    waiting = lock.acquire.begin()
    eventually(lambda: listening(backend) == 1)
    assert backend.view.set("b", "somebody", nx=True), "it holds nothing while it waits"
    first.release()
    for name in ("b", "c"):
        channel = f"wheel_lock:wake:{{{name}}}"
        eventually(lambda: backend.view.pubsub_numsub(channel)[0][1] == 1, LONG_S, f"it waits for {name}")  # noqa: B023
        if name == "b":
            backend.view.delete(name)
            backend.view.publish(channel, "0")
    assert not waiting.done()
    assert waiter.stats().held == 0
    second.release()
    assert waiting.result(LONG_S)
    assert lock.is_held
    lock.release()


def test_a_waiter_for_one_name_goes_on_when_the_set_before_it_waits_for_another(
    backend: Backend, context: LockContext, new_caller: NewCaller
) -> None:
    waiter, _ = deaf(backend)
    both = new_caller(waiter).locks.multi_lock(["a", "b"], blocking_timeout=LONG_S)
    one = new_caller(waiter).locks.lock("a", blocking_timeout=LONG_S)
    first, second = context.lock("a"), context.lock("b")
    first.acquire()
    second.acquire()
    waiting_for_both, waiting_for_one = both.acquire.begin(), one.acquire.begin()
    first.release()
    assert waiting_for_one.result(LONG_S), "though it stood behind the one who waits for both"
    one.release()
    assert not waiting_for_both.done()
    second.release()
    assert waiting_for_both.result(LONG_S)
    both.release()


def test_overlapping_sets_in_opposite_orders_do_not_deadlock(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    names = [f"n{number}" for number in range(6)]
    holders: dict[str, object] = {}

    def work(face: LockContext, seed: int) -> int:
        chance, done = random.Random(seed), 0
        for _ in range(12):
            mine = chance.sample(names, 3)
            with face.multi_lock(reversed(mine) if seed % 2 else mine, blocking_timeout=LONG_S) as lock:
                for name in mine:
                    assert holders.setdefault(name, lock) is lock, "it is alone"
                for name in mine:
                    del holders[name]
                done += 1
        return done

    threads = [
        Background(lambda seed=seed: work((context, other)[seed % 2], seed))  # type: ignore[misc]
        for seed in range(6)
    ]
    assert [thread.result(3 * LONG_S) for thread in threads] == [12] * 6
    assert backend.view.dbsize() == 0
    assert context.stats().held == other.stats().held == 0


def test_limits_of_the_context_count_each_of_them(backend: Backend) -> None:
    context = backend.context(max_held=2)
    with pytest.raises(TooManyLocks):
        context.multi_lock(NAMES).acquire()
    assert backend.view.dbsize() == 0
    with context.multi_lock(["a", "b"]), pytest.raises(TooManyLocks):
        context.lock("c").acquire()


# Losses


def test_a_release_says_which_were_lost_and_releases_the_others(backend: Backend, me: Caller) -> None:
    losses = Losses()
    lock = me.locks.multi_lock(NAMES, renew_every=0.02, on_lost=losses)
    lock.acquire()
    backend.view.delete("b")
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S)
    assert not lock.is_held
    assert lock.remaining() == 0.0
    assert [name for name, one in lock.locks.items() if one.is_held] == ["a", "c"]
    with pytest.raises(LockLost):
        lock.raise_if_lost()
    with pytest.raises(LocksLost) as caught:
        lock.release()
    assert caught.value.losses == {"b": LossReason.KEY_GONE}
    assert backend.view.dbsize() == 0
    assert me.context.stats().held == 0
    eventually(losses.all_told, LONG_S)
    assert [(event.name, event.reason) for event in losses.events] == [("b", LossReason.KEY_GONE)]
    with lock:
        assert lock.lost is None


def test_a_loss_that_only_the_release_finds_is_told(backend: Backend, context: LockContext) -> None:
    lock = context.multi_lock(NAMES)
    lock.acquire()
    backend.view.delete("a")
    backend.view.set("c", "another")
    with pytest.raises(LocksLost) as caught:
        lock.release()
    assert caught.value.losses == {"a": LossReason.KEY_GONE, "c": LossReason.TAKEN}
    assert backend.view.keys() == [b"c"]


def test_an_error_in_the_block_is_not_hidden_by_a_loss(backend: Backend, context: LockContext) -> None:
    def work() -> None:
        with context.multi_lock(NAMES):
            backend.view.delete("b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert any("could not be released" in note for note in caught.value.__notes__)
    assert backend.view.dbsize() == 0


def test_all_of_them_are_renewed(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    with context.multi_lock(NAMES, timeout=30.0) as lock:
        clock.advance(65.0)
        assert lock.is_held
        assert all(one.renewals == 6 for one in lock.locks.values())


# Tasks


def test_tasks_get_all_or_none_and_take_turns(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        holders: set[str] = set()

        async def work(seed: int) -> None:
            mine = random.Random(seed).sample("abcde", 2)
            async with context.asyncio.multi_lock(mine, blocking_timeout=LONG_S) as lock:
                assert lock.is_held
                assert holders.isdisjoint(mine)
                holders.update(mine)
                await asyncio.sleep(0)
                holders.difference_update(mine)

        await asyncio.gather(*[work(seed) for seed in range(40)])
        assert backend.view.dbsize() == 0
        assert context.stats().held == 0

    run(main())


def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing(
    run: Run, backend: Backend, context: LockContext, other: LockContext
) -> None:
    async def main() -> None:
        with other.lock("b"):
            task = asyncio.create_task(context.asyncio.multi_lock(NAMES).acquire())
            await waiting(context, 1)
            one = context.asyncio.lock("b", blocking_timeout=LONG_S)
            behind = asyncio.create_task(one.acquire())
            await waiting(context, 2)
            task.cancel()
            await ended(task)
            assert task.cancelled()
            assert backend.view.keys() == [b"b"]
            await waiting(context, 1)
        assert await behind
        assert context.stats().held == 1
        await one.release()

    run(main())


def test_a_coroutine_that_is_thrown_away_in_the_middle_leaves_nothing_held(
    run: Run, backend: Backend, context: LockContext
) -> None:
    async def main() -> None:
        async def hold() -> None:
            async with context.asyncio.multi_lock(NAMES):
                await asyncio.get_running_loop().create_future()

        coroutine = hold()
        task = asyncio.ensure_future(asyncio.sleep(0))
        future = coroutine.send(None)
        while context.stats().held < 3:
            await asyncio.sleep(0.001)
        assert future is not None
        coroutine.send(None)
        await task
        coroutine.close()
        await until(lambda: backend.view.dbsize() == 0)
        assert context.stats().held == 0

    run(main())
