"""What users read in the log while one of the masters is away."""

from __future__ import annotations

import pytest

from tests.quorum.masters import Masters
from tests.support.logged import Log
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0


def test_one_master_of_a_quorum(masters: Masters, log: Log) -> None:
    with masters.connected(close_timeout=0.5) as context, context.lock("order:42", timeout=15.0) as lock:
        eventually(lambda: all(node.held == 1 for node in context.node_stats().values()), PATIENCE_S)
        masters.servers[0].kill()
        eventually(lambda: log.said("unreachable"), PATIENCE_S)
        (warning,) = log.said("unreachable")
        assert f":{masters.servers[0].port} has been unreachable" in warning
        assert "1 lock is held there" in warning
        masters.servers[0].start()
        eventually(lambda: log.said("well again"), PATIENCE_S)
        assert lock.is_held
