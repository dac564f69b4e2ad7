"""Those who wait, and may not listen for wake-ups, look by themselves."""

from __future__ import annotations

import time

import pytest

from tests.faults.support import Pulse, own_context
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NAME = "order:42"
BUSY_S = 1.0  # how late a busy machine may be


def connections(server: RedisServer) -> list[str]:
    """The library's connections."""
    return sorted(client["id"] for client in server.client().client_list() if client["name"].startswith("wheel_lock:"))


@pytest.mark.parametrize("rights", [("resetchannels",), ("allchannels", "-@pubsub")])
def test_who_may_not_subscribe_looks_by_himself(fresh_redis: RedisServer, rights: tuple[str, ...]) -> None:
    """A user has all rights but these about channels."""
    fresh_redis.client().execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "+@all", *rights)
    url = f"redis://app:secret@127.0.0.1:{fresh_redis.port}/0"
    with own_context(url, fallback_interval=0.2) as context, own_context(fresh_redis) as holders:
        holder = holders.lock(NAME, timeout=30.0)
        assert holder.acquire(blocking=False)
        waiter = context.lock(NAME, timeout=30.0, thread_local=False)
        waiting = Background(waiter.acquire)
        eventually(lambda: len(connections(fresh_redis)) == 3)  # two for the locks, one that only listens
        before = connections(fresh_redis)
        time.sleep(2.2)  # the first PING must not cost the connection
        assert connections(fresh_redis) == before
        assert not waiting.done
        with Pulse() as pulse:
            released_at = time.monotonic()
            holder.release()
            assert waiting.result(30.0)
            assert time.monotonic() - released_at - pulse.stood_s() < 0.2 + BUSY_S
        waiter.release()
