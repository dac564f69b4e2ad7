"""The network fails as only a real one does: resets in a pipeline, half-open connections, a server that is full."""

from __future__ import annotations

import gc
import logging
import random
import time
from collections.abc import Iterator

import pytest
import redis

from tests.faults.shared_wheel import (
    LONG_S,
    SharedWheel,
)
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

_random = random.Random()


@pytest.fixture
def wheel(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[SharedWheel]:
    gc.collect()  # locks that earlier tests of this process have dropped are reported before the test, not during it
    with SharedWheel(redis_server) as wheel:
        yield wheel
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == []


@pytest.fixture
def network(wheel: SharedWheel, redis_server: RedisServer) -> TcpProxy:
    return wheel.proxy(redis_server)


@pytest.fixture
def view(redis_server: RedisServer) -> redis.Redis:
    """A way to the server on which nothing fails."""
    return redis_server.client()


def await_reconnected(context: LockContext, before: int) -> None:
    eventually(lambda: context.stats().connects > before, LONG_S, "there is another connection")


def test_resets_at_random_bytes_of_a_large_pipeline_lose_nothing(
    wheel: SharedWheel, network: TcpProxy, view: redis.Redis
) -> None:
    """RST at byte k of a pipeline: each entry unknown."""
    names = [f"job {number}" for number in range(2000)]
    context = wheel.context(network)
    wheel.assert_alive(context)
    network.cut_after_bytes(_random.randrange(100_000), "to_server")
    held = wheel.hold(context, names, timeout=4.0, renew_every=0.6)
    for direction in ("to_server", "to_client", "to_server", "to_client", "to_server"):
        before = context.stats().connects
        size = 100_000 if direction == "to_server" else 20  # a reply to many renewals that all went well is short
        network.cut_after_bytes(_random.randrange(size), direction)
        await_reconnected(context, before)
    network.heal()
    held.await_renewal()
    held.assert_all_held()
    assert context.stats().unknown > 0
    assert view.mget(names) == list(held.tokens.values())


def test_a_connection_lost_while_the_server_is_full_is_replaced_when_it_is_not(
    wheel: SharedWheel, fresh_redis: RedisServer
) -> None:
    """maxclients reached: the state is unknown meanwhile, and connecting is not retried in a tight loop."""
    view = fresh_redis.client()
    network = wheel.proxy(fresh_redis)
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=5.0, renew_every=0.5)
    held.await_renewal()
    view.config_set("maxclients", 1)
    network.cut()
    time.sleep(1.0)
    held.assert_all_held()
    assert 1 <= view.info("stats")["rejected_connections"] <= 20
    view.config_set("maxclients", 1000)
    held.await_renewal()
    held.assert_all_held()
