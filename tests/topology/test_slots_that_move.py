"""Calls about a slot that is on its way, which the nodes send from one to another."""

from __future__ import annotations

import pytest

from tests.support.redis_server import require_redis_7
from tests.topology.cluster_nodes import Nodes
from tests.topology.moving_slots import is_renewed, keys_in, names_at, names_in, on_its_way
from wheel_lock import LockContext, LostEvent

pytestmark = pytest.mark.slow


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
