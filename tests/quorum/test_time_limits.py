"""A caller's time limit bounds the whole call where a majority of the masters is away."""

from __future__ import annotations

import asyncio

import pytest

from tests.quorum.masters import Masters
from tests.support.time_limits import LIMIT_S, RESPONSE_S, within_limit

pytestmark = pytest.mark.slow


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
