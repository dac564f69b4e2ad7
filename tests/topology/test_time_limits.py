"""A caller's time limit bounds the whole call where several servers have a say, and some of them are away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.redis.support import LONG_S
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.masters import Masters
from tests.topology.nodes import MASTERS, Nodes
from wheel_lock import LockContext, LockTimeout, LockUnavailable
from wheel_lock.protocol.keys import SLOTS, hash_slot

pytestmark = pytest.mark.slow

LIMIT_S = 0.5
RESPONSE_S = 60.0
"""What a call would take that does not heed its caller's limit."""


def within_limit(call: Callable[[], object]) -> None:
    """Call, and see it fail because servers are away, when its time is up."""
    began = time.monotonic()
    with pytest.raises((LockTimeout, LockUnavailable)):
        call()
    assert LIMIT_S - 0.01 <= time.monotonic() - began < LONG_S


def name_on(nodes: Nodes, server: RedisServer) -> str:
    """A name that lives on one of the masters."""
    number = nodes.masters.index(server)
    first, last = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS - 1
    return next(name for n in range(1000) if first <= hash_slot((name := f"order:{n}").encode()) <= last)


def test_a_majority_that_is_away(masters: Masters) -> None:
    with masters.connected(response_timeout=RESPONSE_S, close_timeout=0.2) as context:
        for server in masters.servers[:3]:
            server.pause()
        # One of so long a timeout would let each master take ten seconds.
        within_limit(lambda: context.lock("order:42", timeout=100.0).acquire(blocking_timeout=LIMIT_S))


def test_a_majority_of_which_nothing_was_ever_heard(masters: Masters) -> None:
    for server in masters.servers[:3]:
        server.pause()
    with masters.context(response_timeout=RESPONSE_S, close_timeout=0.2) as context:
        lock = context.asyncio.lock("order:42", timeout=100.0, blocking_timeout=LIMIT_S)
        within_limit(lambda: asyncio.run(lock.acquire()))


@pytest.mark.parametrize("away", [0, 2])
def test_several_names_of_which_some_live_where_nothing_is_answered(nodes: Nodes, away: int) -> None:
    silent = nodes.masters[away]
    names = [name_on(nodes, server) for server in nodes.masters]
    with LockContext(nodes.client(), response_timeout=RESPONSE_S, close_timeout=0.2) as patient:
        with patient.multi_lock(names):
            pass
        silent.pause()
        within_limit(lambda: patient.multi_lock(names, timeout=60.0).acquire(blocking_timeout=LIMIT_S))
        within_limit(lambda: patient.acquire_many(names, timeout=60.0, blocking_timeout=LIMIT_S))
        others = [server for server in nodes.masters if server is not silent]
        eventually(lambda: all(server.client().dbsize() == 0 for server in others), LONG_S, "nothing is left there")
        silent.resume()
        eventually(lambda: silent.client().dbsize() == 0, LONG_S, "nor here")
