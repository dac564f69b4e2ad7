"""What a demoted master refuses to do goes to the next master, whatever the words of its version are."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine.rig import Rig, agreement, error
from tests.protocol.test_server_errors import ROWS, error_of
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Later
from wheel_lock.engine.requests.base import Request
from wheel_lock.engine.topology.cluster import _PAUSE_S, ClusterRouter
from wheel_lock.engine.topology.sentinel import SentinelRouter
from wheel_lock.protocol.server_errors import ServerError

TEXTS = [str(error_of(row)).rstrip() for row in ROWS if row["code"] == "READONLY"]
# What a script without a #!lua line replies for each of its leases, before Redis 7.
READ_ONLY = "@user_script: 1: -READONLY You can't write against a read only replica.\r\n"


REQUESTS: dict[str, Callable[[Rig], Future[Any]]] = {
    "SET": lambda rig: rig.acquire("a").future,
    "release": lambda rig: rig.release(rig.hold("a")),
    "extend": lambda rig: rig.extend(rig.hold("a"), 5.0, replace=True),
}


@pytest.mark.parametrize("demotion", TEXTS)
@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_goes_to_the_next_master(rig: Rig, what: str, demotion: str) -> None:
    rig.connector.discovers = True  # it finds out which server is the master whenever it connects
    future = REQUESTS[what](rig)
    rig.say(error(demotion))
    assert len(rig.connector.servers) == 1
    rig.go_on(0.1)
    assert len(rig.connector.servers) == 2
    rig.server.say(agreement(rig.server.one(what)))
    rig.turn()
    assert future.result() in (True, None)
    assert all(map(rig.is_valid, rig.held))


def test_a_script_that_a_cluster_refuses_half_way_may_have_been_executed() -> None:
    router: Any = SimpleNamespace(refresh=lambda: None)
    request: Any = object.__new__(Request)
    request.node = SimpleNamespace()
    for text, maybe in ((READ_ONLY, False), (READ_ONLY.replace("READONLY", "TRYAGAIN"), True), ("TRYAGAIN", False)):
        assert ClusterRouter.redirection(router, request, ServerError(text)) == Later(_PAUSE_S, maybe)


def test_sentinels_are_asked_again_behind_a_time_in_which_nothing_was_held(rig: Rig) -> None:
    connector: Any = rig.connector
    connector.sentinels, connector.opinions, connector.ask = (), Mock(), Mock()
    router = SentinelRouter(rig.engine.leases, connector)
    for questions in (1, 2):
        rig.post(router.watch_master)
        rig.go_on(10.0)
        assert connector.ask.call_count == questions
