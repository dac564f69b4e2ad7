"""What is done to many names at once, on a cluster: their slots are on all of the nodes, and may move."""

from __future__ import annotations

import pytest

from tests.topology.cluster_nodes import Nodes
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"
NAMES = [f"bulk:{number}" for number in range(300)]


def test_locks_on_all_nodes_change_hands(nodes: Nodes, context: LockContext) -> None:
    with LockContext(nodes.client()) as adopter:  # which has no map of the slots yet
        texts = context.export_many(context.acquire_many(NAMES).values())
        locks = adopter.adopt_many(texts.values())
        assert list(locks) == NAMES
        assert all(lock is not None and lock.is_held for lock in locks.values())
        assert not any(context.adopt_many(texts.values()).values())
        adopter.release_many(locks.values())
    assert sum(server.client().dbsize() for server in nodes.masters) == 0
