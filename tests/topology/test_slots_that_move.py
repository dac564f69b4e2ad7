"""Calls about a slot that is on its way, which the nodes send from one to another."""

from __future__ import annotations

import time

import pytest

from tests.support.background import Background
from tests.support.lock_types import make
from tests.support.redis_server import RedisServer, require_redis_7
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, MASTERS, Nodes
from tests.topology.moving_slots import hung, is_connected, is_renewed, keys_in, names_at, names_in, on_its_way
from wheel_lock import (
    Lock,
    LockContext,
    LockTimeout,
    LossReason,
    LostEvent,
    NotReplicated,
    WheelLockError,
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


def test_a_grant_on_the_way_counts_when_replicas_of_its_new_node_have_it(nodes: Nodes) -> None:
    slot = 120
    names = names_in(slot, 3)
    with (
        on_its_way(nodes, slot) as (_, target),
        LockContext(nodes.client(), min_replicas=1, replica_timeout=0.2) as context,
    ):
        with hung(nodes.servers[MASTERS + 1]):
            with pytest.raises(NotReplicated):
                context.lock(names[0], timeout=60.0).acquire()
            with pytest.raises(NotReplicated):
                context.acquire_many(names[1:], timeout=60.0)
            eventually(lambda: keys_in(slot, target) == 0)
        lock = context.lock(names[0])
        eventually(lambda: acquired(lock), LONG_S)


def acquired(lock: Lock) -> bool:
    try:
        return lock.acquire(blocking=False)
    except NotReplicated:
        return False


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


def test_nodes_that_name_each_other_as_the_owner_are_asked_with_pauses(nodes: Nodes, context: LockContext) -> None:
    slot = 150
    names = names_in(slot, 2)
    source, target = nodes.masters[:2]
    lock = context.lock(names[0], timeout=60.0, renew_every=0.1)
    assert lock.acquire()
    nodes.begin_move(slot, source, target)
    nodes.move_keys(slot, source, target)
    source.client().execute_command("CLUSTER", "SETSLOT", slot, "NODE", nodes.id_of(target))  # and nobody else is told
    redirections = Redirections(source, target)
    other = context.lock(names[1], thread_local=False)
    acquiring = Background(other.acquire)
    time.sleep(0.7)
    redirections.assert_pauses(requests=2)
    assert not acquiring.done or target.client().exists(names[1])  # they may have agreed meanwhile, and say so
    nodes.end_move(slot, target)
    assert acquiring.result()
    is_renewed(lock)
    lock.release()


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


def test_a_renewal_that_is_sent_to_a_node_that_hangs_costs_pauses_only(nodes: Nodes, context: LockContext) -> None:
    slot = 170
    told: list[LostEvent] = []
    lock = context.lock(names_in(slot, 1)[0], timeout=60.0, renew_every=0.1, on_lost=told.append)
    neighbours = [
        context.lock(name, timeout=60.0, renew_every=0.1, on_lost=told.append) for name in names_at(0, 20, "beside")
    ]
    for each in (lock, *neighbours):
        assert each.acquire()
    with on_its_way(nodes, slot) as (source, target):
        nodes.move_keys(slot, source, target)
        with hung(target):
            redirections = Redirections(source)
            eventually(lambda: context.stats().overdue == 1, LONG_S)
            for _ in range(3):
                is_renewed(*neighbours)
            redirections.assert_pauses(requests=1)
            count = lock.renewals
        is_renewed(lock)
        assert count < lock.renewals
        assert told == []
        assert context.stats().lost == 0
        for each in (lock, *neighbours):
            each.release()


def test_an_extension_that_is_sent_on_after_its_time_leaves_the_lock_to_its_renewals(nodes: Nodes) -> None:
    slot = 190
    told: list[LostEvent] = []
    with LockContext(nodes.client(), response_timeout=0.5) as context:
        lock = context.lock(names_in(slot, 1)[0], timeout=60.0, renew_every=20.0, on_lost=told.append)
        eventually(lambda: is_connected(context, lock.name), LONG_S)
        assert lock.acquire()
        with on_its_way(nodes, slot) as (source, target):
            nodes.move_keys(slot, source, target)
            with hung(source), pytest.raises(LockTimeout):
                lock.extend(5.0)
            eventually(lambda: extended(lock), LONG_S)
            assert told == []
            lock.release()


def extended(lock: Lock) -> bool:
    try:
        return lock.extend(5.0)
    except WheelLockError:  # while the last extension is under way, for one
        return False
