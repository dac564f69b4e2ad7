"""Every way in which a client can be configured holds for the locks too; what cannot work is refused in plain words.

Clients of redis-py and of valkey-py, for threads and for tasks, are configured alike.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.credentials import CredentialProvider

from tests.support.backend import LONG_S, Backend, token_of, without_collection
from tests.support.programs import run_python
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable
from wheel_lock.net.connector import RedisPyConnector

SECRET = "a-password-that-must-not-be-shown"
CLIENTS: dict[str, Any] = {
    "redis-py": redis.Redis,
    "redis-py for tasks": redis.asyncio.Redis,
    "valkey-py": valkey.Valkey,
    "valkey-py for tasks": valkey.asyncio.Valkey,
}
each_client = pytest.mark.parametrize("client_class", CLIENTS.values(), ids=CLIENTS)


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


@each_client
@pytest.mark.parametrize("transport", ["unix_redis", "tls_redis"])
def test_a_url(request: pytest.FixtureRequest, transport: str, client_class: Any) -> None:
    server: RedisServer = request.getfixturevalue(transport)
    works(LockContext(client_class.from_url(server.url)), server.client())


@pytest.mark.parametrize("client_class", [CLIENTS["redis-py"], CLIENTS["valkey-py"]])
def test_a_certificate_of_an_unknown_authority_is_refused(tls_redis: RedisServer, client_class: Any) -> None:
    refused = pytest.raises(LockUnavailable, match="certificate verify failed")
    with LockContext(client_class(port=tls_redis.tls_port, ssl=True), response_timeout=1.0) as context, refused:
        context.lock("order:42").acquire()


def test_client_options_go_with_a_url(redis_server: RedisServer) -> None:
    context = LockContext.from_url(redis_server.url, client_options={"client_name": "billing"}, batch_size=10)
    with context, context.lock("order:42"):
        names = [client["name"] for client in redis_server.client().client_list()]
        assert "billing" in names


@each_client
@pytest.mark.parametrize(
    "options",
    [
        {"decode_responses": True},
        {"decode_responses": True, "encoding": "utf-16", "protocol": 2},
        {"protocol": 3},
        {"protocol": 2},
        {"encoding": "latin-1"},
        {"client_name": "billing"},
        {"db": 3},
        {"health_check_interval": 1},
        {"socket_timeout": 0.5, "socket_connect_timeout": 0.5},
        {"single_connection_client": True},
    ],
    ids=str,
)
def test_a_client_may_be_configured_as_it_likes(real: Backend, client_class: Any, options: dict[str, Any]) -> None:
    view = real.client(protocol=2, db=options.get("db", 0))
    works(LockContext(client_class(port=real.port, **options)), view)
    view.flushdb()


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


@each_client
def test_a_password_holds_and_a_user_too(guarded: RedisServer, client_class: Any) -> None:
    works(LockContext(client_class.from_url(guarded.url)), guarded.client())
    context = LockContext(client_class(port=guarded.port, username="app", password=f"{SECRET}2"))
    assert SECRET not in repr(context)
    works(context, guarded.client())


class Provider(CredentialProvider):
    """Notes on which threads it is asked: by its blocking method, which is preferred."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        self.asked.append(threading.current_thread().name)
        return "app", f"{SECRET}2"

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        pytest.fail("the other method does not wait for an event loop")


class OnlyAwaited(Provider):
    get_credentials = CredentialProvider.get_credentials

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        await asyncio.sleep(0.001)
        return Provider.get_credentials(self)


@pytest.mark.parametrize(
    ("client_class", "provider"),
    [*((each, Provider) for each in CLIENTS.values()), (redis.asyncio.Redis, OnlyAwaited)],
)
def test_a_credential_provider_is_asked_for_every_connection(
    guarded: RedisServer, client_class: Any, provider: type[Provider]
) -> None:
    asks = provider()
    context = LockContext(client_class(port=guarded.port, credential_provider=asks))
    with context.lock("order:42", timeout=30.0) as lock:
        first = len(asks.asked)
        guarded.client().client_kill_filter(_type="normal", skipme=True)
        assert lock.extend(1.0, replace_ttl=True)
        assert len(asks.asked) > first >= 1
    assert all(name.startswith("wheel-lock") for name in asks.asked)
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
    for thing in (None, b"redis://localhost", object(), 5, valkey.ConnectionPool()):
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


# Clients of valkey-py


def test_a_function_greets_each_connection(real: Backend) -> None:
    greeted: list[Any] = []

    def greet(connection: Any) -> None:
        connection.on_connect()
        greeted.append(connection)

    with LockContext(valkey.Valkey(port=real.port, valkey_connect_func=greet)) as context, context.lock("order:42"):
        assert greeted


def test_the_host_name_of_a_certificate_is_checked_where_the_client_checks_it() -> None:
    unchecked, checked = valkey.Valkey(ssl=True), valkey.Valkey(ssl=True, ssl_check_hostname=True)
    with LockContext(unchecked) as first, LockContext(checked) as second:
        settings = [context._connector._settings for context in (first, second)]  # type: ignore[union-attr]
    assert [each["ssl_check_hostname"] for each in settings] == [False, True]


def test_a_quorum_of_clients_of_both_libraries() -> None:
    with RedisServer() as one, RedisServer() as two, RedisServer() as three:
        clients: list[Any] = [
            valkey.Valkey(port=one.port), redis.Redis(port=two.port), valkey.asyncio.Valkey(port=three.port)
        ]  # fmt: skip
        with LockContext.quorum(clients) as context, context.lock("order:42", timeout=3.0) as lock:
            assert lock.is_held
            assert sum(client.exists("order:42") for client in clients[:2]) >= 1


def test_a_class_of_connections_of_the_users_own_is_refused(real: Backend) -> None:
    class Tunnel(valkey.Connection):
        pass

    pool = valkey.ConnectionPool(connection_class=Tunnel, port=real.port)
    with pytest.raises(TypeError, match=r"Tunnel are not supported: of valkey-py's clients only"):
        LockContext(valkey.Valkey(connection_pool=pool))


def test_a_shared_context_lives_as_long_as_its_client(real: Backend) -> None:
    client = valkey.Valkey(port=real.port)
    context = weakref.ref(LockContext.shared(client))
    assert LockContext.shared(client) is context()
    assert LockContext.shared(valkey.Valkey(connection_pool=client.connection_pool)) is context()
    with LockContext.shared(client).lock("order:42"):
        assert client.exists("order:42")
    client.close()
    del client
    gc.collect()
    eventually(lambda: gc.collect() >= 0 and context() is None, LONG_S)


def test_a_connection_that_is_dropped_is_closed_without_a_collection(real: Backend) -> None:
    with without_collection():
        connection = RedisPyConnector(real.client()).connect(LONG_S)
        made = weakref.ref(connection._made[0])
        del connection
        assert made() is None


def test_a_program_without_valkey_py_never_imports_it(real: Backend) -> None:
    text = f"""
import sys, redis
from wheel_lock import LockContext
with LockContext(redis.Redis(port={real.port})) as context, context.lock("order:42"):
    pass
try:
    LockContext(object())
except TypeError:
    print([name for name in sys.modules if name.partition(".")[0] == "valkey"])
"""
    assert run_python("-c", text) == "[]\n"
