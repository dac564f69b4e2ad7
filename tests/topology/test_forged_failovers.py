"""Failovers that a Sentinel makes up: the others are asked, but not without end."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import redis
from redis.sentinel import Sentinel

from tests.support.backend import Clock
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.watched_master import SERVICE
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.engine.topology.sentinel import SentinelRouter

pytestmark = pytest.mark.slow

FORGED = 200
AT_ONCE = 8


def test_failovers_that_are_made_up_are_asked_about_now_and_then(redis_server: RedisServer) -> None:
    with RedisServer(f"sentinel monitor {SERVICE} 127.0.0.1 {redis_server.port} 1", sentinel=True) as sentinel:
        asking = Sentinel([("127.0.0.1", sentinel.port)])
        eventually(lambda: asking.discover_master(SERVICE)[1] == redis_server.port)
        client: redis.Redis = asking.master_for(SERVICE)
        clock = Clock()
        timer = HashedWheelTimer(clock=clock)
        context = LockContext(client, timer=timer)
        failovers = context._engine.router
        assert isinstance(failovers, SentinelRouter)
        asked = 0
        look = context._engine.launch

        def counted(attempt: object) -> None:
            nonlocal asked
            asked += 1
            look(attempt)  # type: ignore[arg-type]

        with context.lock("order:42", timeout=60.0):
            eventually(lambda: not failovers._looking)
            context._engine.launch = counted
            for _ in range(FORGED):
                heard = threading.Event()
                timer.post(partial(failovers.on_message, f"{SERVICE} 127.0.0.1 1 127.0.0.1 2".encode()))
                timer.post(heard.set)
                assert heard.wait(30.0)
                eventually(lambda: not failovers._looking)
            assert 1 <= asked <= 2 * AT_ONCE
            asked = 0
            clock.advance(0.3)
            eventually(lambda: asked == 1)
        context.close()
        timer.stop()
        client.close()
