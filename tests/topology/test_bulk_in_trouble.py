"""Bulk work on a cluster of which one master is silent, with short limits and many renewals: nothing is shaken by it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator

import pytest

from tests.topology.moving import hung
from tests.topology.nodes import MASTERS, Nodes
from wheel_lock import LockContext, WheelLockError

pytestmark = pytest.mark.slow

LASTS_S = 60.0
LOCKS = 4000


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes() as nodes:
        yield nodes


def test_a_bulk_acquire_that_fails_half_way_asks_nothing_of_a_lease_that_its_state_does_not_allow(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(1)
    end = time.monotonic() + LASTS_S
    rounds = 0
    while time.monotonic() < end:
        rounds += 1
        context = LockContext(
            nodes.client(),
            response_timeout=chance.choice([0.05, 0.1, 0.2, 0.4]),
            batch_size=chance.choice([5, 50, 500]),
            close_timeout=0.5,
        )
        with hung(nodes.masters[chance.randrange(MASTERS)]):
            try:
                locks = context.acquire_many([f"order:{n}" for n in range(LOCKS)], timeout=5.0, renew_every=0.05)
                context.release_many(locks.values())
            except WheelLockError:
                pass  # the silent master
        context.close()
        bad = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert bad == [], f"round {rounds}"
        caplog.clear()
    assert rounds > 5
