"""Those who wait while something breaks: a wake-up can be lost, a turn never is, and everybody is told how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.support import Pulse, own_context
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext

pytestmark = pytest.mark.slow

NAME = "order:42"
CHANNEL = f"wheel_lock:wake:{{{NAME}}}"
NEVER_S = 600.0  # a fallback that nobody lives to see: what is got was got by being woken
BUSY_S = 1.0  # how late a busy machine may be


@pytest.fixture
def others(redis_server: RedisServer) -> Iterator[LockContext]:
    """Another process's context."""
    with own_context(redis_server) as context:
        yield context


def hold(context: LockContext, timeout: float = 30.0) -> Lock:
    lock = context.lock(NAME, timeout, thread_local=False)
    assert lock.acquire(blocking=False)
    return lock


def wait(context: LockContext, name: str = NAME, **terms: Any) -> Background[float]:
    """Begin to wait for a lock, and return when its caller stands in line. The result is when it was granted."""
    lock = context.lock(name, timeout=30.0, thread_local=False, **terms)
    waiting = context.stats().waiting

    def acquire() -> float:
        assert lock.acquire()
        at = time.monotonic()
        lock.release()
        return at

    background = Background(acquire)
    eventually(lambda: context.stats().waiting > waiting)
    return background


def listeners(server: RedisServer) -> int:
    """How many connections listen for the release of the lock."""
    return int(server.client().pubsub_numsub(CHANNEL)[0][1])


def connections(server: RedisServer) -> list[str]:
    """The library's connections."""
    return sorted(client["id"] for client in server.client().client_list() if client["name"].startswith("wheel_lock:"))


def wait_and_listen(context: LockContext, server: RedisServer) -> Background[float]:
    waiting = wait(context)
    eventually(lambda: listeners(server) == 1)
    return waiting


def seconds_to_grant(waiting: Background[float], release: Callable[[], object]) -> float:
    """Let go of the lock, and return how long it took until the waiter had it, but for the time when nobody could run."""
    with Pulse() as pulse:
        at = time.monotonic()
        release()
        took_s = waiting.result(30.0) - at
        return took_s - pulse.stood_s()


# Wake-ups that are lost


def test_a_waiter_whose_subscription_is_killed_is_woken_all_the_same(
    redis_server: RedisServer, others: LockContext
) -> None:
    holder = hold(others)
    with own_context(redis_server, fallback_interval=NEVER_S) as context:
        waiting = wait_and_listen(context, redis_server)
        for _ in range(5):
            assert redis_server.client().client_kill_filter(_type="pubsub") == 1
            eventually(lambda: listeners(redis_server) == 1, message="it has subscribed again")
        assert seconds_to_grant(waiting, holder.release) < BUSY_S


# Wake-ups that are not allowed


def restricted(server: RedisServer, *rights: str) -> str:
    """Make a user with all rights but these about channels; return the URL of the server for that user."""
    server.client().execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "+@all", *rights)
    return f"redis://app:secret@127.0.0.1:{server.port}/0"


@pytest.mark.parametrize("rights", [("resetchannels",), ("allchannels", "-@pubsub")])
def test_who_may_not_subscribe_looks_by_himself(fresh_redis: RedisServer, rights: tuple[str, ...]) -> None:
    url = restricted(fresh_redis, *rights)
    with own_context(url, fallback_interval=0.2) as context, own_context(fresh_redis) as holders:
        holder = hold(holders)
        waiting = wait(context)
        eventually(lambda: len(connections(fresh_redis)) == 3)  # two for the locks, one that only listens
        before = connections(fresh_redis)
        time.sleep(2.2)  # the first PING must not cost the connection
        assert connections(fresh_redis) == before
        assert seconds_to_grant(waiting, holder.release) < 0.2 + BUSY_S
