"""Every way in which a client can be configured holds for the locks too; what cannot work is refused in plain words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import fakeredis
import pytest
import redis
from redis.credentials import CredentialProvider

from tests.support.backend import LONG_S, Backend, token_of
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable

SECRET = "a-password-that-must-not-be-shown"


def works(context: LockContext, view: redis.Redis) -> None:
    """The whole life of a lock, renewals and bulk included."""
    with context, context.lock("order:42", timeout=3.0, renew_every=0.1, fencing=True) as lock:
        assert view.get("order:42") == token_of(lock)
        assert (lock.locked(), lock.owned()) == (True, True)
        eventually(lambda: lock.renewals >= 2, LONG_S)
        assert lock.extend(1.0)
        locks = context.acquire_many([f"shard:{number}" for number in range(2_000)])
        assert all(locks.values())
        context.release_many(locks.values())
        assert view.exists("order:42")
    assert view.keys("*:*") == [b"wheel_lock:fence:{order:42}"]


@pytest.mark.parametrize("transport", ["redis_server", "unix_redis", "tls_redis"])
def test_a_url(request: pytest.FixtureRequest, transport: str) -> None:
    server: RedisServer = request.getfixturevalue(transport)
    works(LockContext.from_url(server.url), server.client())


def test_client_options_go_with_a_url(redis_server: RedisServer) -> None:
    context = LockContext.from_url(redis_server.url, client_options={"client_name": "billing"}, batch_size=10)
    with context, context.lock("order:42"):
        names = [client["name"] for client in redis_server.client().client_list()]
        assert "billing" in names


@pytest.mark.parametrize(
    "options",
    [
        {"decode_responses": True},
        {"decode_responses": True, "encoding": "utf-16", "protocol": 2},
        {"protocol": 3},
        {"protocol": 2},
        {"health_check_interval": 1},
        {"socket_timeout": 0.5, "socket_connect_timeout": 0.5},
        {"single_connection_client": True},
    ],
    ids=str,
)
def test_a_client_may_be_configured_as_it_likes(real: Backend, options: dict[str, object]) -> None:
    works(LockContext(real.client(**options)), real.view)


def test_a_database_number_holds(real: Backend) -> None:
    works(LockContext(real.client(db=3)), real.client(db=3, protocol=2))
    with LockContext(real.client(db=3)) as context, context.lock("order:43"):
        assert not real.view.exists("order:43")
    real.client(db=3).flushdb()


def test_a_database_that_is_not_there_is_reported(real: Backend) -> None:
    lock = real.context_of(real.client(db=1000), response_timeout=1.0).lock("order:42")
    with pytest.raises(LockUnavailable, match=r"(?i)db|database"):
        lock.acquire()


# Passwords


def test_a_connection_class_that_waits_when_it_disconnects_delays_no_renewal(real: Backend) -> None:
    guard = threading.Lock()
    disconnected: list[str] = []

    class Waits(redis.Connection):
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            with guard:
                disconnected.append(threading.current_thread().name)
                super().disconnect(*args, **kwargs)  # type: ignore[no-untyped-call]

    pool = redis.ConnectionPool(connection_class=Waits, port=real.port)
    context = real.context_of(redis.Redis.from_pool(pool))
    with context.lock("order:42", timeout=LONG_S, renew_every=0.1) as lock:

        def goes_on(connects: int, renewals: int) -> bool:
            return context.stats().connects > connects and lock.renewals > renewals + 1

        for _ in range(3):
            with guard:
                before = context.stats().connects, lock.renewals
                real.view.client_kill_filter(_type="normal", skipme=True)
                eventually(partial(goes_on, *before), LONG_S)
    context.close()
    eventually(lambda: len(disconnected) >= 4)  # and redis-py has counted each
    assert context.timer.name not in disconnected


@pytest.fixture
def guarded() -> Iterator[RedisServer]:
    """A server with a password, and a user of its own."""
    with RedisServer(password=SECRET, users=[f"app on >{SECRET}2 ~* &* +@all"]) as server:
        yield server


def test_a_password_holds_and_a_user_too(guarded: RedisServer) -> None:
    works(LockContext.from_url(guarded.url), guarded.client())
    client = redis.Redis(host="127.0.0.1", port=guarded.port, username="app", password=f"{SECRET}2")
    works(LockContext(client), guarded.client())


def test_a_credential_provider_is_asked_for_every_connection(guarded: RedisServer) -> None:
    asked: list[int] = []

    class Provider(CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            asked.append(1)
            return "app", f"{SECRET}2"

    client = redis.Redis(host="127.0.0.1", port=guarded.port, credential_provider=Provider())
    context = LockContext(client)
    with context.lock("order:42", timeout=30.0) as lock:
        first = len(asked)
        guarded.client().client_kill_filter(_type="normal", skipme=True)
        assert lock.extend(1.0, replace_ttl=True)
        assert len(asked) > first >= 1
    works(context, guarded.client())


@pytest.mark.parametrize("password", [f"{SECRET}-wrong", None], ids=["wrong password", "no password"])
def test_refused_credentials(guarded: RedisServer, password: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    client = redis.Redis(host="127.0.0.1", port=guarded.port, password=password)
    with LockContext(client, response_timeout=60.0) as context:
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(LockUnavailable, match=r"(?i)password|authentication") as caught:
                context.lock("order:42").acquire()
            assert SECRET not in str(caught.value)
            assert SECRET not in repr(caught.value.__cause__)
            assert caught.value.lock_name == "order:42"
        assert time.monotonic() - began < LONG_S  # and not the minute that a server may take to come back
        assert SECRET not in repr(context)
    assert SECRET not in caplog.text


def test_a_password_that_is_set_right_later_is_used(fresh_redis: RedisServer) -> None:
    with LockContext(redis.Redis(host="127.0.0.1", port=fresh_redis.port, password="new")) as context:
        with pytest.raises(LockUnavailable):
            context.lock("order:42").acquire()
        fresh_redis.client().config_set("requirepass", "new")
        with context.lock("order:42") as lock:
            assert lock.is_held


# What cannot work is refused


def test_a_fakeredis_client_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"wheel_lock\.testing\.fake_context"):
        LockContext(fakeredis.FakeRedis())


def test_what_is_no_client_no_timer_and_no_url_is_refused_by_its_type() -> None:
    thing: Any
    for thing in (None, b"redis://localhost", object(), 5):
        name = type(thing).__name__
        with pytest.raises(TypeError, match=name):
            LockContext(thing)
        with pytest.raises(TypeError, match=f"url must be a str, not {name}"):
            LockContext.from_url(thing)
        if thing is not None:
            with pytest.raises(TypeError, match=f"timer must be a HashedWheelTimer, not {name}"):
                LockContext(redis.Redis(port=1), timer=thing)
            with pytest.raises(TypeError, match=f"timer must be a HashedWheelTimer, not {name}"):
                LockContext.quorum([redis.Redis(port=port) for port in (1, 2, 3)], timer=thing)
    with pytest.raises(ValueError, match="scheme"):
        LockContext.from_url("http://localhost")
    with pytest.raises(TypeError):
        LockContext.from_url("redis://localhost", no_such_setting=1)  # type: ignore[call-arg]
