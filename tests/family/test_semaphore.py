"""The semaphore, for threads and for tasks: so many permits and no more, each a lease of its own."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from tests.aio.support import Run, ended, until, waiting
from tests.family.support import NAME, NewThread, deaf, traces
from tests.redis.support import LONG_S, Backend, Background, Losses, in_thread
from tests.support.waiting import eventually
from wheel_lock import (
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LockServerError,
    LossReason,
    WrongThread,
)
from wheel_lock.sync.primitives import Semaphore


def permits_of(context: LockContext, number: int, permits: int = 2) -> list[Semaphore]:
    """So many objects that hold one permit each."""
    held = [context.semaphore(NAME, permits) for _ in range(number)]
    for semaphore in held:
        assert semaphore.acquire(blocking=False)
    return held


# How many


def test_no_more_hold_it_than_there_are_permits(backend: Backend, context: LockContext, other: LockContext) -> None:
    first = context.semaphore(NAME, 2)
    assert (first.permits, first.locked()) == (2, False)
    with first:
        assert not first.locked()
        with other.semaphore(NAME, 2) as second:
            assert first.locked()
            assert not context.semaphore(NAME, 2).acquire(blocking=False)
            assert not other.semaphore(NAME, 2).acquire(blocking=False)
            assert backend.view.zcard(NAME) == 2
            assert {first.token, second.token} == set(backend.view.zrange(NAME, 0, -1))
            assert first.owned()
        assert context.semaphore(NAME, 2).acquire(blocking=False)
    assert not first.owned()


def test_an_object_holds_one_permit_per_thread(context: LockContext, new_thread: NewThread) -> None:
    semaphore, there = context.semaphore(NAME, 3), new_thread()
    semaphore.acquire()
    with pytest.raises(LockAlreadyHeld):
        semaphore.acquire()
    assert there.do(lambda: semaphore.acquire(blocking=False))
    with pytest.raises(LockAlreadyHeld):
        there.do(semaphore.acquire)
    assert context.stats().held == 2
    tokens = {semaphore.token, there.do(lambda: semaphore.token)}
    assert len(tokens) == 2
    semaphore.release()
    assert not in_thread(lambda: semaphore.locked())
    assert there.do(lambda: semaphore.is_held)
    with pytest.raises(LockNotHeld):
        semaphore.release()
    with pytest.raises(WrongThread):
        in_thread(semaphore.release)
    assert semaphore.acquire(blocking=False)
    assert there.do(semaphore.release)
    assert semaphore.is_held
    semaphore.release()
    with pytest.raises(LockNotHeld):
        semaphore.release()


def test_a_permit_without_an_owner_may_be_released_by_any_thread(backend: Backend, context: LockContext) -> None:
    semaphore = context.semaphore(NAME, 2, thread_local=False)
    in_thread(semaphore.acquire)
    assert semaphore.is_held
    with pytest.raises(LockAlreadyHeld):
        semaphore.acquire()
    assert semaphore.release()
    assert not backend.view.exists(NAME)


def test_those_who_were_made_with_fewer_see_what_others_hold(context: LockContext, other: LockContext) -> None:
    held = permits_of(context, 2, permits=3)
    assert not other.semaphore(NAME, 2).acquire(blocking=False)
    assert not other.semaphore(NAME, 1).acquire(blocking=False)
    third = other.semaphore(NAME, 3)
    assert third.acquire(blocking=False)
    for semaphore in held:
        semaphore.release()
    assert not context.semaphore(NAME, 1).acquire(blocking=False)
    assert context.semaphore(NAME, 2).acquire(blocking=False)
    third.release()


def test_many_threads_of_two_contexts_never_hold_more_than_there_are(
    backend: Backend, context: LockContext, other: LockContext
) -> None:
    inside = most = 0
    guard = threading.Lock()

    def work(face: LockContext) -> None:
        nonlocal inside, most
        semaphore = face.semaphore(NAME, 3, blocking_timeout=LONG_S)
        for _ in range(8):
            with semaphore:
                with guard:
                    inside += 1
                    most = max(most, inside)
                    assert inside <= 3
                time.sleep(0.001)
                with guard:
                    inside -= 1

    threads = [Background(lambda face=face: work(face)) for face in (context, other) * 4]  # type: ignore[misc]
    for thread in threads:
        thread.result()
    assert most > 1
    assert not backend.view.exists(NAME)


def test_one_who_goes_by_more_permits_does_not_wait_for_one_who_goes_by_fewer(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    waiter, _ = deaf(backend)
    [held] = permits_of(context, 1)
    there, few = new_thread(), waiter.semaphore(NAME, 1, blocking_timeout=LONG_S)
    waiting_one = there.begin(waiter, few.acquire)
    try:
        many = backend.context().semaphore(NAME, 2)
        assert many.acquire(blocking=False), "there is room"
        many.release()
        elsewhere, many = new_thread(), waiter.semaphore(NAME, 2)
        future = elsewhere.submit(lambda: many.acquire(blocking_timeout=LONG_S))
        eventually(future.done, LONG_S, "it does not wait")
        assert elsewhere.do(many.release)
    finally:
        held.release()
        assert waiting_one.result(LONG_S)
        there.do(few.release)


def test_a_release_lets_one_in_and_a_grant_lets_the_next_one_ask(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    held = permits_of(context, 3, permits=3)
    waiter, _ = deaf(backend)
    theirs = [(new_thread(), waiter.semaphore(NAME, 3, blocking_timeout=LONG_S)) for _ in range(3)]
    waits = [there.begin(waiter, semaphore.acquire) for there, semaphore in theirs]
    for semaphore in held:
        semaphore.release()
    for waiting_one in waits:
        assert waiting_one.result(LONG_S)
    for there, semaphore in theirs:
        assert there.do(semaphore.release)


# Another number for all


def test_more_permits_wake_those_who_wait(backend: Backend, context: LockContext, new_thread: NewThread) -> None:
    permits_of(context, 1, permits=1)
    semaphore = context.semaphore(NAME, 1)
    waiter, _ = deaf(backend)
    theirs = [(new_thread(), waiter.semaphore(NAME, 1, blocking_timeout=LONG_S)) for _ in range(3)]
    waits = [there.begin(waiter, other.acquire) for there, other in theirs]
    channel = f"wheel_lock:wake:permit:{{{NAME}}}"
    eventually(lambda: backend.view.pubsub_numsub(channel)[0][1] == 1)
    semaphore.set_permits(3)
    eventually(lambda: sum(wait.done() for wait in waits) == 2, LONG_S)
    assert waiter.stats().waiting == 1
    assert semaphore.locked()
    semaphore.set_permits(4)
    for wait in waits:
        assert wait.result(LONG_S)
    for there, other in theirs:
        assert there.do(other.release)


def test_fewer_permits_take_nothing_away(backend: Backend, context: LockContext) -> None:
    held = permits_of(context, 3, permits=3)
    held[0].set_permits(1)
    assert all(semaphore.is_held for semaphore in held)
    assert all(semaphore.reacquire() for semaphore in held)
    another = context.semaphore(NAME, 3)
    for semaphore in held[:2]:
        assert another.locked()
        assert not another.acquire(blocking=False)
        semaphore.release()
    assert another.locked(), "one of one is held"
    held[2].release()
    assert not another.locked()
    assert another.acquire(blocking=False)


def test_the_number_can_be_left_to_each_of_them_again(backend: Backend, context: LockContext) -> None:
    semaphore = context.semaphore(NAME, 2)
    semaphore.set_permits(5)
    assert semaphore.permits == 2, "which is what it was made with"
    permits_of(context, 5)
    assert semaphore.locked()
    semaphore.set_permits(None)
    assert semaphore.locked()
    assert not semaphore.acquire(blocking=False)
    assert context.semaphore(NAME, 6).acquire(blocking=False)
    assert not backend.view.exists(f"wheel_lock:permits:{{{NAME}}}")


def test_the_number_is_kept_for_later_and_bad_numbers_are_refused(backend: Backend, context: LockContext) -> None:
    semaphore = context.semaphore(NAME, 1)
    semaphore.set_permits(2)
    for number in (0, -1, True, 1.5, "2"):
        with pytest.raises(ValueError, match="permits"):
            semaphore.set_permits(number)  # type: ignore[arg-type]
    assert backend.view.get(f"wheel_lock:permits:{{{NAME}}}") == b"2"
    permits_of(context, 2, permits=1)


def test_what_finds_data_under_its_name_is_refused(backend: Backend, context: LockContext) -> None:
    backend.view.set(NAME, "something else")
    semaphore = context.semaphore(NAME, 5)
    for patience in ({"blocking": False}, {"blocking_timeout": LONG_S}):
        with pytest.raises(LockServerError, match="string"):
            semaphore.acquire(**patience)
    assert semaphore.locked()
    assert backend.view.get(NAME) == b"something else"


# Leases


def test_a_crashed_holders_permit_comes_back_after_its_timeout(backend: Backend, context: LockContext) -> None:
    crashed, _ = backend.stepped_context()  # whose clock stands still: it renews nothing
    dead, semaphore = crashed.semaphore(NAME, 1, timeout=1.0), context.semaphore(NAME, 1)
    assert (dead.locked(), semaphore.locked()) == (False, False)  # the connections stand
    assert dead.acquire()
    assert not semaphore.acquire(blocking=False)
    assert semaphore.acquire(blocking_timeout=LONG_S)
    assert backend.view.zcard(NAME) == 1


def test_one_permit_that_is_lost_leaves_the_others_alone(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    first, second = (context.semaphore(NAME, 2, on_lost=losses, renew_every=0.02) for _ in range(2))
    first.acquire()
    second.acquire()
    assert first.token is not None
    backend.view.zrem(NAME, first.token)
    eventually(lambda: first.lost is LossReason.KEY_GONE, LONG_S)
    renewals = second.renewals
    eventually(lambda: second.renewals > renewals + 1, LONG_S)
    with pytest.raises(LockLost):
        first.release()
    assert first.acquire(blocking=False)
    assert [event.reason for event in losses.all_told()] == [LossReason.KEY_GONE]
    context.release_many([first, second])
    assert traces(backend) == []


def test_an_object_that_is_dropped_gives_back_what_every_thread_holds_through_it(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    there, losses = new_thread(), Losses()
    semaphores = [context.semaphore(NAME, 3, timeout=20.0, renew_every=0.05, on_lost=losses)]
    semaphores[0].acquire()
    there.do(lambda: semaphores[0].acquire())
    with pytest.warns(ResourceWarning, match="was abandoned"):
        semaphores.clear()
        gc.collect()
        eventually(lambda: len(losses.all_told()) == 2, LONG_S, "both are told")
    assert {event.reason for event in losses.events} == {LossReason.ABANDONED}
    assert context.stats().held == 0


# Tasks


def test_tasks_that_share_an_object_hold_a_permit_each(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        semaphore = context.asyncio.semaphore(NAME, 3, blocking_timeout=LONG_S)
        inside = 0
        full = asyncio.Barrier(3)  # opens when three are inside

        async def work() -> None:
            nonlocal inside
            for _ in range(3):
                async with semaphore:
                    inside += 1
                    assert inside <= 3
                    assert semaphore.is_held
                    await full.wait()
                    inside -= 1

        async with asyncio.timeout(LONG_S):
            await asyncio.gather(*[work() for _ in range(12)])
        assert context.stats().held == 0
        assert not backend.view.exists(NAME)

    run(main())


def test_a_task_holds_one_and_does_not_release_anothers(run: Run, context: LockContext) -> None:
    async def main() -> None:
        semaphore = context.asyncio.semaphore(NAME, 2)
        async with semaphore:
            with pytest.raises(LockAlreadyHeld):
                await semaphore.acquire()

            async def intrude() -> None:
                with pytest.raises(WrongThread, match="another task"):
                    await semaphore.release()
                async with semaphore:
                    assert await semaphore.locked()

            await asyncio.create_task(intrude())
            assert semaphore.is_held
            assert not await semaphore.locked()

    run(main())


def test_a_task_may_release_what_was_made_for_any(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        semaphore = context.asyncio.semaphore(NAME, 2, thread_local=False)
        await asyncio.create_task(semaphore.acquire())
        assert await semaphore.release()
        assert not backend.view.exists(NAME)

    run(main())


def test_set_permits_wakes_tasks(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        first, second = (context.asyncio.semaphore(NAME, 1, blocking_timeout=LONG_S) for _ in range(2))
        await first.acquire()
        task = asyncio.create_task(second.acquire())
        await waiting(context, 1)
        await first.set_permits(2)
        assert await task
        with pytest.raises(ValueError, match="permits"):
            await first.set_permits(0)
        await first.set_permits(None)
        await first.release()

    run(main())


def test_a_permit_whose_task_has_ended_is_not_stuck_until_the_loop_ends(
    run: Run, backend: Backend, context: LockContext
) -> None:
    async def main() -> None:
        semaphore = context.asyncio.semaphore(NAME, 1, timeout=20.0, renew_every=0.05)
        task = asyncio.create_task(semaphore.acquire())
        await ended(task)
        try:
            await semaphore.release()
        except WrongThread:
            # Then it must end with its task, because nobody else may release it.
            await until(lambda: not semaphore.is_held, message="it is renewed no more")

    run(main())
