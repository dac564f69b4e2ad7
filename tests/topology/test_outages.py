"""What users read in the log while one of several servers is away: which, since when, and how many locks are held there."""

from __future__ import annotations

import pytest

from tests.support.logged import Log
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import Nodes
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0


def test_one_master_of_a_cluster(nodes: Nodes, context: LockContext, log: Log) -> None:
    names = [f"order:{number}" for number in range(30)]
    locks = context.acquire_many(names, timeout=60.0, renew_every=0.5)
    away = nodes.masters[1]
    there = away.client().dbsize()
    assert 1 < there < 30
    away.kill()
    eventually(lambda: log.said("unreachable"), PATIENCE_S)
    (warning,) = log.said("unreachable")
    assert f":{away.port} has been unreachable" in warning
    assert f"{there} locks are held there" in warning
    assert len(locks) == 30
