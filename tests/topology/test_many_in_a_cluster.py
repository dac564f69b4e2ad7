"""What is done to many names at once, on a cluster: their slots are on all of the nodes, and may move."""

from __future__ import annotations

import pytest

from tests.support.background import Background
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, Nodes
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"
NAMES = [f"bulk:{number}" for number in range(300)]


@pytest.mark.parametrize("all_or_nothing", [False, True])
def test_names_on_all_nodes_are_waited_for(nodes: Nodes, context: LockContext, all_or_nothing: bool) -> None:
    with LockContext(nodes.client()) as rival:
        theirs = rival.acquire_many(NAMES[::10])
        call = Background(
            lambda: context.acquire_many(
                NAMES, blocking=True, all_or_nothing=all_or_nothing, blocking_timeout=3 * LONG_S
            )
        )
        eventually(lambda: context.stats().waiting == (1 if all_or_nothing else 30))
        assert context.stats().held == (0 if all_or_nothing else 270)
        rival.release_many(theirs.values())
        locks = call.result()
    assert list(locks) == NAMES
    assert all(lock is not None and lock.is_held for lock in locks.values())
    context.release_many(locks.values())
    assert sum(server.client().dbsize() for server in nodes.masters) == 0


def test_locks_on_all_nodes_change_hands(nodes: Nodes, context: LockContext) -> None:
    with LockContext(nodes.client()) as adopter:  # which has no map of the slots yet
        texts = context.export_many(context.acquire_many(NAMES).values())
        locks = adopter.adopt_many(texts.values())
        assert list(locks) == NAMES
        assert all(lock is not None and lock.is_held for lock in locks.values())
        assert not any(context.adopt_many(texts.values()).values())
        adopter.release_many(locks.values())
    assert sum(server.client().dbsize() for server in nodes.masters) == 0
