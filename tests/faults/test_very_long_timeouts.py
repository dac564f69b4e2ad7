"""What is not refused must work: the thread that waits for a renewal in weeks must not break on that."""

from __future__ import annotations

import pytest

from tests.faults.support import Losses, own_context, wait_s
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

NAME = "order:42"


@pytest.mark.parametrize("timeout", [75 * 86400.0, 1e9], ids=["75 days", "the longest"])
def test_a_very_long_timeout_that_is_accepted_works(redis_server: RedisServer, timeout: float) -> None:
    client = redis_server.client()
    losses = Losses()
    with own_context(redis_server) as context:
        lock = context.lock(NAME, timeout=timeout, on_lost=losses)
        assert lock.acquire()
        wait_s(0.1)
        assert context.timer.deaths == 0
        assert lock.is_held
        assert not losses
        assert client.pttl(NAME) > (timeout - 60.0) * 1000
        lock.release()
