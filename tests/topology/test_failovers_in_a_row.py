"""Failovers while locks are held, waited for, extended and released: one, and another one after it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from tests.support.backend import Losses
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.watched_master import SERVICE, Watched
from wheel_lock import Lock, LockContext, LockLost, LossReason
from wheel_lock import asyncio as tasks

pytestmark = pytest.mark.slow

LONG_S = 40.0
"""A bound that only a bug or a hopelessly busy machine exceeds: a failover is in it, and what follows."""
TIMEOUT_S = 30.0
TURN_S = 2.0  # what a master that is killed had not passed on is waited for so long


@pytest.fixture(scope="module")
def running() -> Iterator[Watched]:
    with Watched(
        down_after_ms=3000
    ) as watched:  # they fail over when they are told to, and not because of a busy moment
        yield watched


@pytest.fixture
def watched(running: Watched) -> Watched:
    """Both servers well and empty, one behind the other."""
    follow(running)
    running.master.client().flushall()
    eventually(lambda: replicated(running), LONG_S)
    return running


def follow(watched: Watched) -> None:
    """Have the server that is not the master run, and follow the master."""
    master = watched.master
    for server in watched.servers:
        if not server.alive:
            server.start()
        else:
            server.resume()
        if server is not master:
            server.admin.replicaof("127.0.0.1", str(master.port))
    eventually(lambda: in_line(master), LONG_S)


def in_line(master: RedisServer) -> bool:
    replication: dict[str, Any] = master.admin.info("replication")
    return bool(replication["role"] == "master" and replication.get("slave0", {}).get("state") == "online")


def replicated(watched: Watched) -> bool:
    """Whether the replica knows what the master knows."""
    master, replica = watched.master.client(), watched.replica.client()
    return set(replica.keys()) >= set(master.keys())


def take_over(watched: Watched, old: RedisServer) -> RedisServer:
    """Have the other server made the master, whatever has become of ``old``; return it."""

    def done() -> bool:
        if watched.master is not old:
            return True
        with contextlib.suppress(redis.ResponseError):  # under way, or the replica is not known to be well yet
            watched.sentinels[0].admin.sentinel_failover(SERVICE)
        return False

    eventually(done, LONG_S, interval_s=0.05, message="failover")
    return watched.master


def has_left(context: LockContext, old: RedisServer) -> bool:
    """Whether a context has heard that ``old`` is not the master any more, which goes on granting as long as it lives."""
    return not any(
        node.connected and node.server is not None and node.server[1] == str(old.port)
        for node in context._engine.router.nodes
    )


class Turns:
    """Who believes to be alone, and how often each has been."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._inside: list[Lock | tasks.Lock] = []
        self.taken: dict[str, int] = {}
        self.overlaps: list[tuple[str, int]] = []
        self.over = False

    def enter(self, who: str, lock: Lock | tasks.Lock) -> None:
        with self._guard:
            self._inside.append(lock)
            believing = sum(other.is_held for other in self._inside)
            if believing > 1:
                self.overlaps.append((who, believing))

    def leave(self, who: str, lock: Lock | tasks.Lock) -> None:
        with self._guard:
            self._inside.remove(lock)
            self.taken[who] = self.taken.get(who, 0) + 1

    def take(self, who: str, lock: Lock) -> None:
        """Take turns until it is over."""
        while not self.over:
            try:
                with lock:
                    self.enter(who, lock)
                    time.sleep(0.01)
                    self.leave(who, lock)
            except LockLost:
                pass  # the new master had not heard of it

    async def take_in_task(self, who: str, lock: tasks.Lock) -> None:
        while not self.over:
            try:
                async with lock:
                    self.enter(who, lock)
                    await asyncio.sleep(0.01)
                    self.leave(who, lock)
            except LockLost:
                pass  # the new master had not heard of it


def test_two_failovers_in_a_row_keep_what_is_held_and_let_every_waiter_in(watched: Watched) -> None:
    told = Losses()
    turns = Turns()
    with contextlib.ExitStack() as stack:
        holding, *waiting = [
            stack.enter_context(LockContext(watched.client(), response_timeout=LONG_S)) for _ in range(3)
        ]
        terms: dict[str, Any] = {"timeout": 60.0, "on_lost": told}
        kept = holding.acquire_many([f"kept:{n}" for n in range(100)], **terms)
        forgotten = [holding.acquire_many([f"forgotten:{turn}:{n}" for n in range(5)], **terms) for turn in range(2)]
        first = holding.lock("turn", timeout=60.0, on_lost=told)
        assert first.acquire()

        async def in_tasks(context: LockContext, which: str) -> None:
            locks = {f"task {n} {which}": context.asyncio.lock("turn", timeout=TURN_S) for n in range(3)}
            await asyncio.gather(*[turns.take_in_task(who, lock) for who, lock in locks.items()])

        workers: list[Background[None]] = []
        for context, which in zip(waiting, ("here", "there"), strict=True):
            workers.append(Background(partial(asyncio.run, in_tasks(context, which))))
            for number in range(3):
                lock = context.lock("turn", timeout=TURN_S)
                workers.append(Background(partial(turns.take, f"thread {number} {which}", lock)))
        eventually(lambda: sum(context.stats().waiting for context in waiting) == 12, LONG_S)

        try:
            for turn in range(2):
                eventually(lambda: replicated(watched), LONG_S)
                old, replica = watched.master, watched.replica.client()
                replica.config_set("replica-read-only", "no")
                replica.delete(*forgotten[turn])
                old.kill()
                take_over(watched, old)
                eventually(lambda: len(told.events) == 5 * (turn + 1), LONG_S)  # noqa: B023
                assert all(lock is not None and lock.is_held for lock in kept.values())
                assert {event.name for event in told.events[-5:]} == set(forgotten[turn])
                if turn == 0:
                    assert first.is_held
                    assert turns.taken == {}
                    first.release()
                    eventually(lambda: len(turns.taken) == 12, LONG_S)
                    follow(watched)
            before = dict(turns.taken)
            eventually(lambda: all(turns.taken[who] > before[who] for who in before), LONG_S)
        finally:
            turns.over = True
        for worker in workers:
            worker.result(LONG_S)
        assert turns.overlaps == []
        assert {event.reason for event in told.all_told()} == {LossReason.KEY_GONE}
        assert len(told.events) == 10
        holding.release_many(lock for lock in kept.values() if lock is not None)
        eventually(lambda: watched.master.admin.exists("turn", *kept) == 0, LONG_S)


def test_a_waiter_whose_context_holds_nothing_leaves_a_demoted_master_as_well(watched: Watched) -> None:
    with LockContext(watched.client()) as holding, LockContext(watched.client()) as other:
        lock = holding.lock("order:42", timeout=TIMEOUT_S, thread_local=False)
        assert lock.acquire()
        waiter = other.lock("order:42", timeout=TIMEOUT_S, thread_local=False)
        waiting = Background(waiter.acquire)
        eventually(lambda: other.stats().waiting == 1)
        eventually(lambda: replicated(watched), LONG_S)
        old = watched.master
        new = take_over(watched, old).client()
        eventually(lambda: has_left(holding, old), LONG_S)
        channel = "wheel_lock:wake:{order:42}"
        eventually(lambda: waiting.done or dict(new.pubsub_numsub(channel))[channel.encode()], LONG_S)
        assert not waiting.done, "the old master has granted it, too"
        assert lock.is_held
        lock.release()
        assert waiting.result(LONG_S)
        assert new.get("order:42") == waiter.token
        waiter.release()
