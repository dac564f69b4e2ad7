"""A network that hangs up where changes of keys are asked for: that costs the reports, and no lock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.backend import Losses
from tests.support.logged import Log
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer, require_tracking
from tests.support.waiting import eventually
from wheel_lock import LockContext, LossReason

pytestmark = pytest.mark.slow

NAME = "order:42"
REFUSAL = "does not report changes of locks"


@pytest.fixture(autouse=True, scope="module")
def tracking() -> None:
    require_tracking()


@pytest.fixture
def network(redis_server: RedisServer) -> Iterator[TcpProxy]:
    redis_server.client().flushall()
    with TcpProxy(redis_server.port) as network:
        yield network


@pytest.mark.parametrize("words", ["TRACKING", "CACHING"])
def test_a_proxy_that_hangs_up_at_what_it_does_not_know(
    network: TcpProxy, redis_server: RedisServer, log: Log, words: str
) -> None:
    network.hang_up_at(words.encode())
    with LockContext(redis.Redis(port=network.port), watch=True) as context:
        losses = Losses()
        lock = context.lock(NAME, timeout=10.0, renew_every=0.2, on_lost=losses)
        assert lock.acquire()
        eventually(lambda: log.said(REFUSAL))
        renewals, accepted = lock.renewals, network.accepted
        eventually(lambda: lock.renewals >= renewals + 5)
        # One is perhaps made behind the last hang-up.
        assert network.accepted <= accepted + 1
        assert not context.stats().watching
        assert losses.all_told() == []
        redis_server.client().delete(NAME)
        eventually(losses.all_told)
        assert losses.all_told()[0].reason is LossReason.KEY_GONE
        assert len(log.said(REFUSAL)) == 1
