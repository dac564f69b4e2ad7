"""Bulk work on a cluster of which one master is silent, with short limits and many renewals: nothing is shaken by it."""

from __future__ import annotations

import itertools
import logging

import pytest

from tests.topology.cluster_nodes import MASTERS, Nodes
from tests.topology.moving_slots import hung
from wheel_lock import LockContext, WheelLockError

pytestmark = pytest.mark.slow

LOCKS = 2000
NODES = "cluster_without_replicas"


def test_a_bulk_acquire_that_fails_half_way_asks_nothing_of_a_lease_that_its_state_does_not_allow(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    for number, (limit_s, batch) in enumerate(itertools.product([0.05, 0.1, 0.2, 0.4], [5, 50, 500])):
        context = LockContext(nodes.client(), response_timeout=limit_s, batch_size=batch, close_timeout=0.1)
        with hung(nodes.masters[number % MASTERS]):
            try:
                locks = context.acquire_many([f"order:{n}" for n in range(LOCKS)], timeout=5.0, renew_every=0.05)
                context.release_many(locks.values())
            except WheelLockError:
                pass  # the silent master
        context.close()
        bad = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert bad == [], f"{limit_s} s, {batch} a batch"
        caplog.clear()
