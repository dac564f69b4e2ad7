"""The model of a server replies as a real one does, to random commands and scripts."""

from __future__ import annotations

import random

import pytest

from tests.simulation.contract import disagreements
from tests.support.redis_server import RedisServer, redis_server_version


@pytest.mark.slow
def test_the_model_replies_as_a_server_does(redis_server: RedisServer) -> None:
    first = random.SystemRandom().randrange(1 << 48)
    flagged = redis_server_version() >= (7,)
    for found in disagreements(redis_server.port, iter(range(first, first + 300)), flagged=flagged):
        pytest.fail(found)
