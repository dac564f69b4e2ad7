"""The fair lock: first come, first served, across contexts; who gives up or dies keeps nobody waiting."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import Future

import pytest

from tests.aio.support import Run, ended, until
from tests.family.support import NAME, NewThread, deaf, traces, zmembers
from tests.redis.support import LONG_S, Backend, Background, in_thread
from tests.support.waiting import eventually
from wheel_lock import (
    Lock,
    LockAlreadyHeld,
    LockContext,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    LossReason,
    TooManyLocks,
    WrongThread,
)

QUEUE = f"wheel_lock:queue:{{{NAME}}}"
ALIVE = f"wheel_lock:alive:{{{NAME}}}"
CHANNEL = f"wheel_lock:wake:fair:{{{NAME}}}"


def queued(backend: Backend, places: int) -> None:
    """Return when so many stand in the queue."""
    eventually(lambda: backend.view.zcard(QUEUE) == places, LONG_S, f"{places} are queued")


def test_it_is_held_and_released_like_any_other(backend: Backend, context: LockContext, other: LockContext) -> None:
    lock = context.fair_lock(NAME)
    with lock:
        assert backend.view.get(NAME) == lock.token
        assert lock.owned()
        assert lock.locked()
        assert not other.fair_lock(NAME).acquire(blocking=False)
        with pytest.raises(LockAlreadyHeld):
            lock.acquire()
        with pytest.raises(WrongThread):
            in_thread(lock.release)
        assert lock.extend(30.0)
        assert lock.remaining() > 50.0
    assert traces(backend) == []
    with pytest.raises(LockNotHeld):
        lock.release()


def test_it_excludes_the_plain_lock_of_its_name(context: LockContext, other: LockContext) -> None:
    with context.fair_lock(NAME):
        assert not other.lock(NAME).acquire(blocking=False)
    with context.lock(NAME):
        assert not other.fair_lock(NAME).acquire(blocking=False)


def test_fences_grow(context: LockContext, other: LockContext) -> None:
    fences = []
    for face in (context, other, context):
        with face.fair_lock(NAME, fencing=True) as lock:
            assert lock.fence is not None
            fences.append(lock.fence)
    assert fences == sorted(set(fences))


def test_it_is_granted_in_the_order_of_arrival_across_contexts(backend: Backend, new_thread: NewThread) -> None:
    contexts = [backend.context(fallback_interval=30.0) for _ in range(3)]
    order: list[int] = []
    futures: list[Future[None]] = []

    def take_turn(context: LockContext, number: int) -> None:
        with context.fair_lock(NAME, blocking_timeout=LONG_S):
            order.append(number)

    with contexts[0].fair_lock(NAME):
        for number in range(8):
            context = contexts[number % 3]
            futures.append(new_thread().submit(take_turn, context, number))
            queued(backend, number + 1)
    for future in futures:
        future.result(LONG_S)
    assert order == list(range(8))
    assert traces(backend) == []


def test_who_does_not_want_to_wait_does_not_jump_the_queue(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    waiter, _ = deaf(backend)
    there, lock = new_thread(), waiter.fair_lock(NAME, blocking_timeout=LONG_S)
    holder = context.fair_lock(NAME)
    holder.acquire()
    waiting = there.begin(waiter, lock.acquire)
    queued(backend, 1)
    backend.view.delete(NAME)  # free, and nobody has said so
    assert not context.fair_lock(NAME).acquire(blocking=False)
    assert waiting.result(LONG_S), "and has been told by that try"
    assert there.do(lock.release)
    assert traces(backend) == []
    with pytest.raises(LockLost):
        holder.release()


def test_who_gives_up_leaves_the_queue_and_those_behind_go_on(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    waiter, _ = deaf(backend)
    there, lock = new_thread(), waiter.fair_lock(NAME, blocking_timeout=LONG_S)
    holder = context.fair_lock(NAME)
    holder.acquire()
    other, clock = backend.stepped_context()
    impatient = Background(lambda: other.fair_lock(NAME).acquire(blocking_timeout=0.3))
    queued(backend, 1)
    waiting = there.begin(waiter, lock.acquire)
    queued(backend, 2)
    clock.advance(0.3)
    assert impatient.result(LONG_S) is False
    queued(backend, 1)  # it says so without waiting for the server
    assert backend.view.zcard(ALIVE) == 1
    holder.release()
    assert waiting.result(LONG_S)
    assert there.do(lock.release)
    assert traces(backend) == []


def test_one_who_dies_while_waiting_is_skipped(backend: Backend, context: LockContext, new_thread: NewThread) -> None:
    dead, _ = backend.stepped_context(fallback_interval=1.0)  # whose clock stands still: it is not heard of again
    holder = context.fair_lock(NAME)
    holder.acquire()
    stuck = new_thread().begin(dead, dead.fair_lock(NAME, blocking_timeout=LONG_S).acquire)
    queued(backend, 1)
    eventually(lambda: not backend.view.exists(ALIVE), LONG_S)
    there, lock = new_thread(), context.fair_lock(NAME, blocking_timeout=LONG_S)
    waiting = there.begin(context, lock.acquire)
    queued(backend, 1)
    holder.release()
    assert waiting.result(LONG_S)
    assert there.do(lock.release)
    dead.close()
    with pytest.raises(Exception, match="closed"):
        stuck.result(LONG_S)


def test_one_who_dies_when_it_is_its_turn_is_skipped(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    proxy = backend.proxy()
    dead = backend.context_through(proxy, fallback_interval=0.5, close_timeout=0.1)
    holder = context.fair_lock(NAME)
    holder.acquire()
    stuck = new_thread().begin(dead, dead.fair_lock(NAME, blocking_timeout=LONG_S).acquire)
    queued(backend, 1)
    there, lock = new_thread(), context.fair_lock(NAME, blocking_timeout=LONG_S)
    waiting = there.begin(context, lock.acquire)
    queued(backend, 2)
    proxy.to_server.delay_s = proxy.to_client.delay_s = math.inf
    holder.release()
    assert waiting.result(LONG_S)
    assert there.do(lock.release)
    dead.close()
    with pytest.raises(Exception, match="closed"):
        stuck.result(LONG_S)


def test_a_waiter_keeps_its_place_for_as_long_as_it_waits(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    waiter = backend.context(fallback_interval=1.0)
    there, lock = new_thread(), waiter.fair_lock(NAME, blocking_timeout=LONG_S)
    with context.fair_lock(NAME):
        waiting = there.begin(waiter, lock.acquire)
        queued(backend, 1)
        [place] = zmembers(backend, QUEUE)
        first = backend.view.zscore(ALIVE, place)
        assert first is not None
        eventually(lambda: (backend.view.zscore(ALIVE, place) or 0) > first + 1_000, LONG_S)
        assert zmembers(backend, QUEUE) == [place]
    assert waiting.result(LONG_S)
    assert there.do(lock.release)


@pytest.mark.parametrize("terms", [{"retry_every": 0.02}, {"retry_every": 0.02, "max_attempts": 20}])
def test_who_polls_stands_in_the_queue_too(
    backend: Backend, context: LockContext, new_thread: NewThread, terms: dict[str, float]
) -> None:
    holder = context.fair_lock(NAME)
    holder.acquire()
    there, lock = new_thread(), backend.context().fair_lock(NAME, blocking_timeout=LONG_S, **terms)  # type: ignore[arg-type]
    polling = there.submit(lock.acquire)
    queued(backend, 1)
    if "max_attempts" in terms:
        assert polling.result(LONG_S) is False
        eventually(lambda: traces(backend) == [NAME.encode()], LONG_S)
    holder.release()
    if "max_attempts" not in terms:
        assert polling.result(LONG_S)
        assert there.do(lock.release)
    assert traces(backend) == []


def test_who_may_not_wait_any_more_does_not_stay_in_the_queue(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    crowded = backend.context(max_waiting=1)
    there, lock = new_thread(), crowded.fair_lock(NAME, blocking_timeout=LONG_S)
    with context.fair_lock(NAME):
        waiting = there.begin(crowded, lock.acquire)
        with pytest.raises(TooManyLocks):
            crowded.fair_lock(NAME).acquire()
        queued(backend, 1)
    assert waiting.result(LONG_S)
    assert there.do(lock.release)
    assert traces(backend) == []


def test_a_failure_of_one_who_waits_leaves_nothing_granted_to_the_others(
    backend: Backend, context: LockContext, new_thread: NewThread
) -> None:
    """The second's time is up while the first's grant is on its way: both are told of the failure, and nothing is left."""
    proxy = backend.proxy()
    waiter, clock = backend.stepped_context()
    waiter.close()
    timer = backend.timer(clock)
    waiter = backend.context_through(proxy, timer=timer, response_timeout=20.0, fallback_interval=30.0)
    holder = context.fair_lock(NAME)
    holder.acquire()
    waits = []
    for places in (1, 2):
        waits.append(new_thread().begin(waiter, waiter.fair_lock(NAME).acquire))
        queued(backend, places)
    eventually(lambda: backend.view.pubsub_numsub(CHANNEL)[0][1] == 1)
    first, _ = zmembers(backend, QUEUE)
    clock.advance(2.0)
    heard_of = backend.view.zscore(ALIVE, first)
    assert backend.view.publish(CHANNEL, first) == 1  # so that the first asks again at 12 s, and the second at 10 s
    eventually(lambda: backend.view.zscore(ALIVE, first) != heard_of)
    clock.advance(0.0)
    proxy.to_client.delay_s = math.inf
    holder.release()
    clock.advance(10.5)
    eventually(lambda: backend.view.exists(NAME), LONG_S, "the first has been granted it, and has not heard of it")
    clock.jump(18.0)
    for waiting in waits:
        with pytest.raises((LockTimeout, LockUnavailable)):
            waiting.result(LONG_S)
    proxy.to_client.delay_s = 0.0
    eventually(lambda: traces(backend) == [], LONG_S)
    assert waiter.stats().held == 0


# Handed over


def test_it_can_be_handed_over_and_the_queue_goes_on(
    backend: Backend, context: LockContext, other: LockContext, new_thread: NewThread
) -> None:
    waiter, _ = deaf(backend)
    there, behind = new_thread(), waiter.fair_lock(NAME, blocking_timeout=LONG_S)
    lock = context.fair_lock(NAME, timeout=20.0, fencing=True)
    lock.acquire()
    waiting = there.begin(waiter, behind.acquire)
    queued(backend, 1)
    adopted = other.adopt(lock.export())
    assert isinstance(adopted, Lock)
    assert (lock.is_held, adopted.is_held) == (False, True)
    assert adopted.fence == lock.fence
    assert adopted.timeout == 20.0
    assert backend.view.get(NAME) == adopted.token
    assert adopted.reacquire()
    assert not waiting.done()
    adopted.release()
    assert waiting.result(LONG_S)
    assert there.do(behind.release)
    assert adopted.acquire(blocking=False), "as a fair lock"
    adopted.release()
    assert traces(backend) == []


def test_a_loss_is_told_and_the_lock_can_be_had_again(backend: Backend, context: LockContext) -> None:
    lock = context.fair_lock(NAME, renew_every=0.02)
    lock.acquire()
    backend.view.delete(NAME)
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S)
    with pytest.raises(LockLost):
        lock.release()
    with lock:
        assert lock.is_held


def test_many_threads_of_several_contexts_are_alone_each(backend: Backend) -> None:
    contexts = [backend.context() for _ in range(3)]
    inside = 0
    guard = threading.Lock()

    def work(context: LockContext) -> None:
        nonlocal inside
        for _ in range(5):
            with context.fair_lock(NAME, blocking_timeout=LONG_S):
                with guard:
                    inside += 1
                    assert inside == 1
                with guard:
                    inside -= 1

    threads = [Background(lambda number=number: work(contexts[number % 3])) for number in range(9)]  # type: ignore[misc]
    for thread in threads:
        thread.result()
    assert traces(backend) == []


# Tasks


def test_tasks_of_several_contexts_get_it_in_the_order_of_arrival(
    run: Run, backend: Backend, context: LockContext, other: LockContext
) -> None:
    order: list[int] = []

    async def take_turn(face: LockContext, number: int) -> None:
        async with face.asyncio.fair_lock(NAME, blocking_timeout=LONG_S):
            order.append(number)

    async def main() -> None:
        async with context.asyncio.fair_lock(NAME):
            tasks = []
            for number in range(8):
                tasks.append(asyncio.create_task(take_turn((context, other)[number % 2], number)))
                await until(lambda number=number: backend.view.zcard(QUEUE) == number + 1)  # type: ignore[misc]
            tasks[3].cancel()
            await ended(tasks[3])
            await until(lambda: backend.view.zcard(QUEUE) == 7)
        await ended(*tasks)

    run(main())
    assert order == [0, 1, 2, 4, 5, 6, 7]
    assert traces(backend) == []


def test_a_task_hands_it_over_to_a_thread(run: Run, context: LockContext, other: LockContext) -> None:
    texts: list[str] = []

    async def main() -> None:
        lock = context.asyncio.fair_lock(NAME, fencing=True)
        await lock.acquire()
        texts.append(await lock.export())
        with pytest.raises(LockNotHeld, match="handed over"):
            await lock.release()

    run(main())
    with other.adopt(texts[0]) as adopted:
        assert adopted.owned()
        assert adopted.fence is not None
    with pytest.raises(LockLost):
        context.adopt(texts[0])
