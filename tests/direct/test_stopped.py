"""A process that is stopped for longer than its lock lasts, while that is on the direct path: it hears of the loss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.faults.holders import Holder
from tests.support.backend import LONG_S
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NAME = "order:42"
TIMEOUT_S = 2.0  # so it may use the path, on which nothing is renewed more often than every 0.4 s
ANOTHERS = b"another's"


@pytest.fixture
def holder(proxy: TcpProxy) -> Iterator[Holder]:
    """A process whose locks use the path, and stay on it."""
    with Holder(proxy.url) as holder:
        assert not holder.ask("open_path").error
        yield holder


def stop_until_another_has_it(holder: Holder, view: redis.Redis) -> None:
    holder.pause()
    eventually(lambda: not view.exists(NAME), LONG_S, "the lock has expired")
    view.set(NAME, ANOTHERS, px=60_000)


def forwarded(proxy: TcpProxy) -> bool:
    """Return whether nothing is on its way through the proxy."""
    connections = list(proxy._open.values())
    return not any(stream.queue for connection in connections for stream in connection.streams)


def acquired(holder: Holder) -> None:
    holder.acquire(NAME, timeout=TIMEOUT_S)
    assert holder.ask("on_path", name=NAME).result


def goes_on(holder: Holder, view: redis.Redis) -> None:
    """Check that the other's lock is untouched, and that the process can use locks."""
    assert view.get(NAME) == ANOTHERS
    holder.acquire("next", timeout=60.0)
    assert not holder.ask("release", name="next").error
    assert holder.ask("stats").result["held"] == 0
    assert view.get(NAME) == ANOTHERS


def test_a_process_that_is_stopped_while_it_holds_a_lock(holder: Holder, redis_server: RedisServer) -> None:
    view = redis_server.client()
    acquired(holder)
    stop_until_another_has_it(holder, view)
    holder.order("look", name=NAME)
    holder.order("release", name=NAME)
    holder.resume()
    look, release = holder.answer(), holder.answer()
    assert (look.result["held"], look.result["lost"]) == (False, "NOT_CONFIRMED")
    assert release.error == "LockLost"
    [told] = eventually(lambda: holder.told_of(NAME), LONG_S)
    assert told.reason == "NOT_CONFIRMED"
    goes_on(holder, view)


def test_a_process_that_is_stopped_in_an_acquire(holder: Holder, redis_server: RedisServer, proxy: TcpProxy) -> None:
    view = redis_server.client()
    proxy.to_client.delay_s = float("inf")
    holder.order("acquire", name=NAME, blocking=False, timeout=TIMEOUT_S)
    eventually(lambda: view.exists(NAME), LONG_S, "the lock is granted")
    stop_until_another_has_it(holder, view)
    proxy.heal()
    eventually(lambda: forwarded(proxy), LONG_S)
    holder.resume()
    acquire = holder.answer()
    assert acquire.error or not acquire.result["granted"]
    assert not holder.ask("look", name=NAME).result["held"]
    goes_on(holder, view)


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_a_process_that_is_stopped_in_a_release(
    holder: Holder, redis_server: RedisServer, proxy: TcpProxy, executed: bool
) -> None:
    view = redis_server.client()
    acquired(holder)
    token = holder.ask("look", name=NAME).result["token"].encode()
    held_up = proxy.to_client if executed else proxy.to_server
    held_up.delay_s = float("inf")
    holder.order("release", name=NAME)
    eventually(lambda: proxy.seen("to_server").count(token) == 2, LONG_S, "the release is sent")
    stop_until_another_has_it(holder, view)
    replies = len(proxy.seen("to_client"))
    held_up.delay_s = 0.0
    eventually(lambda: forwarded(proxy) and (executed or len(proxy.seen("to_client")) > replies), LONG_S)
    eventually(lambda: forwarded(proxy), LONG_S)
    holder.resume()
    assert holder.answer().error == ("" if executed else "LockLost")
    assert not holder.ask("look", name=NAME).result["held"]
    goes_on(holder, view)
    eventually(lambda: [told.reason for told in holder.told] == ([] if executed else ["TAKEN"]), LONG_S)
