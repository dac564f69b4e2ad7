"""Watched locks of a quorum: each master reports the loss of its vote."""

from __future__ import annotations

from tests.quorum.masters import LONG_S, Masters
from tests.support.backend import Losses
from tests.support.redis_server import require_tracking
from tests.support.waiting import eventually

UNHURRIED_S = 600.0
"""A lock of that is not due for renewal within any bound here."""


def test_every_master_of_a_quorum_is_watched(masters: Masters) -> None:
    require_tracking()
    with masters.connected(watch=True) as context:
        losses = Losses()
        lock = context.lock("order:42", timeout=UNHURRIED_S, on_lost=losses)
        assert lock.acquire()
        eventually(lambda: all(stats.renewed for stats in context.node_stats().values()), LONG_S)
        assert context.stats().watching
        masters.delete("order:42")
        eventually(lambda: sum(stats.lost for stats in context.node_stats().values()) == 3, LONG_S)
        eventually(losses.all_told, LONG_S)
