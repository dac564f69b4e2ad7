"""Calls about a slot that is on its way, which the nodes send from one to another."""

from __future__ import annotations

import time

import pytest

from tests.support.lock_types import make
from tests.support.redis_server import RedisServer, require_redis_7
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, Nodes
from tests.topology.moving_slots import is_renewed, keys_in, names_at, names_in, on_its_way
from wheel_lock import (
    LockContext,
    LossReason,
    LostEvent,
)
from wheel_lock.engine.topology.cluster import _PAUSE_S as PAUSE_S

pytestmark = pytest.mark.slow


class Redirections:
    """Counts how often some nodes name another one. (Before Redis 6.2 a server does not say so: then it is never.)"""

    def __init__(self, *servers: RedisServer) -> None:
        self._servers = servers
        self._began = time.monotonic()
        self._before = self._count()

    def _count(self) -> int:
        stats = [server.client().info("errorstats") for server in self._servers]
        return sum(
            each[f"errorstat_{code}"]["count"]
            for each in stats
            for code in ("MOVED", "ASK")
            if f"errorstat_{code}" in each
        )

    def assert_pauses(self, requests: int) -> None:
        """A request is redirected there and back at most, and then pauses; else it is thousands of times a second."""
        count = self._count() - self._before
        pauses = (time.monotonic() - self._began) / PAUSE_S
        assert count <= 2 * requests * (pauses + 1)


# -- where it is sent ------------------------------------------------------------------------------------------------


def test_bulk_work_is_done_where_the_slot_is_going(nodes: Nodes, context: LockContext) -> None:
    slot = 100
    names = names_in(slot, 6)
    with on_its_way(nodes, slot) as (source, target):
        locks = context.acquire_many(names[:3])
        assert all(locks.values())
        assert keys_in(slot, target) == 3
        context.release_many(locks.values())
        assert keys_in(slot, target) == 0
        with context.multi_lock([*names[:3], *names_at(2, 2)]) as together:
            assert together.is_held
        single = context.lock(names[4], timeout=60.0)
        assert single.acquire()
        context.release_many([single])
        assert keys_in(slot, source) == keys_in(slot, target) == 0


def test_a_node_that_does_not_know_its_name_is_found(nodes: Nodes) -> None:
    require_redis_7()
    slot = 140
    names = names_in(slot, 3)
    told: list[LostEvent] = []
    source, target = nodes.masters[:2]
    with LockContext(nodes.client()) as context:
        lock = context.lock(names[0], timeout=60.0, renew_every=0.1, on_lost=told.append)
        assert lock.acquire()
        for server in nodes.servers:
            server.client().config_set("cluster-preferred-endpoint-type", "hostname")  # which none of them has
        try:
            nodes.begin_move(slot, source, target)
            nodes.move_keys(slot, source, target)
            with context.lock(names[1]) as other:  # as its owner says: at "?"
                assert other.is_held
            is_renewed(lock)
            nodes.end_move(slot, target)
            with context.lock(names[2]) as other:
                assert other.is_held
            is_renewed(lock)
        finally:
            for server in nodes.servers:
                server.client().config_set("cluster-preferred-endpoint-type", "ip")
        assert told == []


@pytest.mark.parametrize("kind", ["exclusive", "reentrant", "read", "write", "semaphore"])
def test_a_release_of_the_last_holder_at_a_node_that_its_slot_leaves(
    nodes: Nodes, context: LockContext, kind: str
) -> None:
    slot = 145
    for name, by_force in zip(names_in(slot, 2), (True, False), strict=True):
        lock = make(context, kind, name, timeout=60.0)
        assert lock.acquire()
        if kind == "read":
            nodes.client().zadd(name, {b"i:" + b"x" * 22: -1.0})  # the mark of a waiter, which has expired
        with on_its_way(nodes, slot) as (source, target):
            before = published(source)
            if by_force:
                assert len(context.force_release(name)) == 1
                assert lock.lost is LossReason.KEY_GONE
            else:
                lock.release()
            assert published(source) > before
            assert keys_in(slot, source) == keys_in(slot, target) == 0


def published(server: RedisServer) -> int:
    stats = server.client().info("commandstats")
    return sum(stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in ("publish", "spublish"))


# -- sent to and fro -------------------------------------------------------------------------------------------------


def test_a_lock_that_is_sent_back_to_its_home_is_asked_about_again(nodes: Nodes, context: LockContext) -> None:
    slot = 160
    lock = context.lock(names_in(slot, 1)[0], timeout=60.0, renew_every=0.1)
    assert lock.acquire()
    with on_its_way(nodes, slot) as (source, target):
        nodes.move_keys(slot, source, target)
        target.client().execute_command("CLUSTER", "SETSLOT", slot, "STABLE")  # it does not expect the slot any more
        eventually(lambda: context.stats().overdue == 1, LONG_S)
        redirections = Redirections(source, target)
        time.sleep(0.7)
        redirections.assert_pauses(requests=1)
        target.client().execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", nodes.id_of(source))
        is_renewed(lock)
        lock.release()


# -- sent to where nobody answers ------------------------------------------------------------------------------------
