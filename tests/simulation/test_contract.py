"""The model of a server replies as a real one does, to random commands and scripts."""

from __future__ import annotations

import pytest

from tests.simulation import cluster_contract
from tests.simulation.contract import disagreements
from tests.support.draws import dice
from tests.support.redis_server import RedisServer, redis_server_version


@pytest.mark.slow
def test_the_model_replies_as_a_server_does(redis_server: RedisServer) -> None:
    first = dice().randrange(1 << 48)
    flagged = redis_server_version() >= (7,)
    for found in disagreements(redis_server.port, iter(range(first, first + 300)), flagged=flagged):
        pytest.fail(found)


@pytest.mark.slow
@pytest.mark.skipif(redis_server_version() < (7,), reason="the model of a cluster's nodes is that of Redis 7")
def test_the_model_of_a_cluster_replies_as_a_cluster_does() -> None:
    first = dice().randrange(1 << 48)
    for found in cluster_contract.disagreements(iter(range(first, first + 60))):
        pytest.fail(found)
