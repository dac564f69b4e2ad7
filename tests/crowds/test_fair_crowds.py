"""The queue of a fair lock across processes: in the order of arrival, past those who have died and those who gave up."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest

from tests.crowds.actors import Actor
from tests.support.redis_server import RedisServer
from tests.support.standstill import Standstills
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.protocol.keys import queue_keys

pytestmark = pytest.mark.slow

NAME = "counter"
TIMEOUT_S = 1.6  # a renewal comes in time although the machine stands still for a while
OUTLIVED_S = 1.2 * TIMEOUT_S  # who lives after so long has been heard of meanwhile
LOOK_S = 0.35  # what a waiter may need to notice on a busy machine
CLOCKS_S = 0.01  # by so much readings of two clocks may differ
AT_ONCE_S = 0.25  # less than a waiter's next look by itself
PROCESSES, WAITERS = 4, 100


class Queue:
    """What the server knows of who waits."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()

    def __len__(self) -> int:
        return int(self._client.zcard(queue_keys(NAME.encode())[0]))

    def grows_to(self, length: int) -> None:
        eventually(lambda: len(self) == length, timeout_s=20.0, message=f"{length} wait", interval_s=0.001)


@pytest.fixture
def queue(redis_server: RedisServer) -> Queue:
    return Queue(redis_server)


def test_a_hundred_waiters_of_four_processes_are_served_in_the_order_of_arrival(
    redis_server: RedisServer, context: LockContext, queue: Queue
) -> None:
    holder = context.fair_lock(NAME, 30.0)
    holder.acquire()
    with ExitStack() as stack:
        actors = [stack.enter_context(Actor(redis_server.url)) for _ in range(PROCESSES)]
        for number in range(WAITERS):
            actors[number % PROCESSES].order("pass", hand=f"{number}", kind="fair", name=NAME, timeout=30.0)
            queue.grows_to(number + 1)
        holder.release()
        eventually(
            lambda: sum(len(actor.deeds("pass")) for actor in actors) == WAITERS,
            timeout_s=20.0,
            message="all have been served",
        )
        deeds = [deed for actor in actors for deed in actor.deeds("pass")]
    assert [deed.error for deed in deeds if deed.error] == []
    in_order_of_grants = sorted(deeds, key=lambda deed: int(deed.result))
    assert [int(deed.hand) for deed in in_order_of_grants] == list(range(WAITERS))
    assert len(queue) == 0


def test_a_waiter_that_is_killed_is_skipped_when_it_has_not_been_heard_of_for_a_while(
    redis_server: RedisServer, context: LockContext, queue: Queue, onlooker: Standstills
) -> None:
    holder = context.fair_lock(NAME, TIMEOUT_S)
    holder.acquire()
    with Actor(redis_server.url) as victim, Actor(redis_server.url) as other:
        victim.order("acquire", hand="hand", kind="fair", name=NAME, timeout=TIMEOUT_S)
        queue.grows_to(1)
        other.order("acquire", hand="hand", kind="fair", name=NAME, timeout=TIMEOUT_S)
        queue.grows_to(2)
        time.sleep(OUTLIVED_S)
        assert len(queue) == 2, "those who live keep their places"
        killed = time.monotonic()
        victim.kill()
        holder.release()
        assert other.deed("acquire", "hand").took(killed, onlooker) < TIMEOUT_S + LOOK_S
        assert len(queue) == 0


def test_a_holder_that_is_killed_is_followed_by_the_first_in_the_queue(
    redis_server: RedisServer, context: LockContext, queue: Queue, onlooker: Standstills
) -> None:
    with Actor(redis_server.url) as victim, Actor(redis_server.url) as other:
        victim.hold("hand", NAME, kind="fair", timeout=TIMEOUT_S)
        for number in range(2):
            other.order("acquire", hand=f"{number}", kind="fair", name=NAME, timeout=TIMEOUT_S)
            queue.grows_to(number + 1)
        looked, left_s = time.monotonic(), redis_server.client().pttl(NAME) / 1000
        victim.kill()
        followed = other.deed("acquire", "0")
        assert left_s - CLOCKS_S < followed.after - looked
        assert followed.took(looked, onlooker) < TIMEOUT_S + LOOK_S
        assert not other.deeds("acquire", "1")


def test_waiters_that_give_up_are_skipped_at_once(
    redis_server: RedisServer, context: LockContext, queue: Queue, onlooker: Standstills
) -> None:
    holder = context.fair_lock(NAME, 30.0)
    holder.acquire()
    with Actor(redis_server.url) as one, Actor(redis_server.url) as other:
        for number, (actor, wait) in enumerate([(one, 1.6), (other, None), (other, 1.7), (one, None)]):
            actor.order("acquire", hand=f"{number}", kind="fair", name=NAME, timeout=30.0, wait=wait)
            queue.grows_to(number + 1)
        assert one.deed("acquire", "0").result is False
        assert other.deed("acquire", "2").result is False
        queue.grows_to(2)
        released = time.monotonic()
        holder.release()
        assert other.deed("acquire", "1").took(released, onlooker) < AT_ONCE_S
        assert not one.deeds("acquire", "3")
        released = other.let_go("1", NAME).before
        assert one.deed("acquire", "3").took(released, onlooker) < AT_ONCE_S


def test_a_task_that_is_cancelled_leaves_its_place_at_once(
    redis_server: RedisServer, context: LockContext, queue: Queue, onlooker: Standstills
) -> None:
    holder = context.fair_lock(NAME, 30.0)
    holder.acquire()
    with Actor(redis_server.url) as other:

        async def wait_in_vain() -> None:
            waiting = asyncio.create_task(context.asyncio.fair_lock(NAME, 30.0).acquire())
            await asyncio.to_thread(queue.grows_to, 1)
            other.order("acquire", hand="hand", kind="fair", name=NAME, timeout=30.0)
            await asyncio.to_thread(queue.grows_to, 2)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()

        asyncio.run(wait_in_vain())
        queue.grows_to(1)
        released = time.monotonic()
        holder.release()
        assert other.deed("acquire", "hand").took(released, onlooker) < AT_ONCE_S
