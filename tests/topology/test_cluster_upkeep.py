"""What is known of a cluster is kept up to date from every source, and what is held meanwhile is not harmed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.redis_server import require_redis_7
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, Nodes
from tests.topology.moving_slots import is_renewed, keys_in, names_at, names_in, on_its_way
from wheel_lock import LockContext, LostEvent

pytestmark = pytest.mark.slow


@contextmanager
def without_owner(nodes: Nodes, slot: int) -> Iterator[None]:
    """A slot of the first master has no owner."""
    owner = nodes.id_of(nodes.masters[0])
    for server in nodes.servers:  # the owner first: the others do not hear of it again
        server.client().execute_command("CLUSTER", "DELSLOTS", slot)
    try:
        yield
    finally:
        for server in nodes.servers:
            if server.client().role()[0] == b"master":
                server.client().execute_command("CLUSTER", "SETSLOT", slot, "NODE", owner)


# -- who is asked, and believed --------------------------------------------------------------------------------------


def test_what_the_user_says_about_addresses_is_asked_on_no_thread_of_a_timer(nodes: Nodes) -> None:
    slot = 210
    names = names_in(slot, 2)
    asked_on: set[str] = set()

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        asked_on.add(threading.current_thread().name)
        if "timer" in threading.current_thread().name:
            raise KeyError(address)
        return address

    losses: list[LostEvent] = []
    with LockContext(nodes.client(address_remap=remap)) as context:
        lock = context.lock(names[0], timeout=60.0, renew_every=0.1, on_lost=losses.append)
        assert lock.acquire()
        with on_its_way(nodes, slot) as (source, target):
            nodes.move_keys(slot, source, target)
            is_renewed(lock)
            with context.lock(names[1]) as other:
                assert other.is_held
            lock.release()
    assert losses == []
    assert not any("timer" in name for name in asked_on)


# -- a slot without an owner -------------------------------------------------------------------------------------------


def test_a_lock_whose_slot_has_no_owner_does_not_hold_up_its_neighbours(nodes: Nodes, context: LockContext) -> None:
    slot = 220
    losses: list[LostEvent] = []
    orphan = context.lock(names_in(slot, 1)[0], timeout=60.0, renew_every=0.1, on_lost=losses.append)
    assert orphan.acquire()
    names = [name for name in names_at(0, 30, "beside") if name not in names_in(slot, 30)]
    neighbours = [context.lock(name, timeout=60.0, renew_every=0.1, on_lost=losses.append) for name in names]
    for lock in neighbours:
        assert lock.acquire()
    with without_owner(nodes, slot):
        eventually(lambda: context.stats().overdue, LONG_S)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert context.stats().overdue <= 1  # itself
            time.sleep(0.002)
        is_renewed(*neighbours)
    is_renewed(orphan)
    assert losses == []
    for lock in (orphan, *neighbours):
        lock.release()


# -- a slot that is on its way, of which the nodes send calls from one to another ----------------------------------------


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
    losses: list[LostEvent] = []
    source, target = nodes.masters[:2]
    with LockContext(nodes.client()) as context:
        lock = context.lock(names[0], timeout=60.0, renew_every=0.1, on_lost=losses.append)
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
        assert losses == []
