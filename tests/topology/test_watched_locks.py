"""Watched locks of a cluster and of a master that Sentinels name: each node reports, also the one that a lock moves to."""

from __future__ import annotations

import pytest

from tests.support.backend import of
from tests.support.redis_server import require_tracking
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, Nodes
from tests.topology.moving_slots import home
from tests.topology.watched_master import FAILOVER_S, Watched
from wheel_lock import LockContext, LossReason, LostEvent

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"
UNHURRIED_S = 600.0
"""A lock of that is not due for renewal within any bound here."""


@pytest.fixture(autouse=True, scope="module")
def tracking() -> None:
    require_tracking()


def test_each_node_of_a_cluster_reports_its_own(nodes: Nodes) -> None:
    losses: list[LostEvent] = []
    names = [f"order:{number}" for number in range(90)]
    with LockContext(nodes.client(), watch=True) as context:
        locks = of(context.acquire_many(names, timeout=UNHURRIED_S, on_lost=losses.append))
        eventually(lambda: all(lock.renewals for lock in locks), LONG_S)
        assert context.stats().watching
        client = nodes.client()
        for name in names[:30]:
            client.delete(name)
        eventually(lambda: len(losses) == 30, LONG_S)
        assert {event.name for event in losses} == set(names[:30])
        assert {event.reason for event in losses} == {LossReason.KEY_GONE}
        assert {home(str(event.name)) for event in losses} == {0, 1, 2}
        assert context.stats().held == 60


def test_the_next_master_that_sentinels_name_is_asked_to_report() -> None:
    losses: list[LostEvent] = []
    with Watched() as watched, LockContext(watched.client(), watch=True) as context:
        lock = context.lock("order:42", timeout=UNHURRIED_S, on_lost=losses.append)
        assert lock.acquire()
        eventually(lambda: lock.renewals >= 1, LONG_S)
        replica = watched.replica.client()
        eventually(lambda: replica.exists("order:42"), LONG_S)
        before = lock.renewals
        watched.fail_over()
        eventually(lambda: lock.renewals > before and context.stats().watching, FAILOVER_S)
        assert losses == []
        watched.master.client().delete("order:42")
        eventually(lambda: losses, LONG_S)
        assert losses[0].reason is LossReason.KEY_GONE
