"""A caller's time limit bounds the whole call where several servers have a say, and some of them are away."""

from __future__ import annotations

import pytest

from tests.support.backend import LONG_S
from tests.support.time_limits import LIMIT_S, RESPONSE_S, within_limit
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import MASTERS, Nodes
from tests.topology.moving_slots import names_at
from wheel_lock import LockContext

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("away", [0, 2])
def test_several_names_of_which_some_live_where_nothing_is_answered(nodes: Nodes, away: int) -> None:
    silent = nodes.masters[away]
    names = [names_at(number, 1)[0] for number in range(MASTERS)]
    with LockContext(nodes.client(), response_timeout=RESPONSE_S, close_timeout=0.2) as patient:
        with patient.multi_lock(names):
            pass
        silent.pause()
        within_limit(lambda: patient.multi_lock(names, timeout=60.0).acquire(blocking_timeout=LIMIT_S))
        within_limit(lambda: patient.acquire_many(names, timeout=60.0, blocking_timeout=LIMIT_S))
        others = [server for server in nodes.masters if server is not silent]
        eventually(lambda: all(server.admin.dbsize() == 0 for server in others), LONG_S, "nothing is left there")
        silent.resume()
        eventually(lambda: silent.admin.dbsize() == 0, LONG_S, "nor here")
