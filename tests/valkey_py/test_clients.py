"""A client of valkey-py is as good as one of redis-py; the errors stay redis-py's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import redis
import valkey
import valkey.asyncio

from tests.support.backend import LONG_S, Backend
from tests.support.event_loops import until
from tests.support.lock_types import EXCLUDING, KINDS, make, traces
from tests.support.programs import run_python
from tests.support.redis_server import RedisServer
from tests.support.tls import TlsFiles
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable

SECRET = "a-password-that-must-not-be-shown"
CONTENDER = dict(EXCLUDING)
"""A kind of lock that one of each kind keeps out."""


def works(context: LockContext, view: Any) -> None:
    with context, context.lock("order:42", timeout=3.0, renew_every=0.1, fencing=True) as lock:
        assert view.get("order:42") == lock.token
        eventually(lambda: lock.renewals >= 2, LONG_S)
        assert lock.extend(1.0)
    assert not view.exists("order:42")


# Every kind of lock


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_of_each_kind_is_renewed_keeps_others_out_and_is_released(real: Backend, kind: str) -> None:
    context, other = real.context_of(valkey.Valkey(port=real.port)), real.context()
    with make(context, kind, timeout=3.0, renew_every=0.1) as lock:
        assert lock.is_held
        assert not make(other, CONTENDER[kind]).acquire(blocking=False)
        eventually(lambda: context.stats().renewed >= 2, LONG_S)
    with make(other, CONTENDER[kind], blocking_timeout=LONG_S):
        assert not make(context, kind).acquire(blocking=False)
    assert traces(real) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lock_of_each_kind_works_for_tasks(real: Backend, kind: str) -> None:
    client = valkey.asyncio.Valkey(port=real.port)
    context, other = real.context_of(client).asyncio, real.context()
    async with make(context, kind, timeout=3.0, renew_every=0.1) as lock:
        assert lock.is_held
        assert not make(other, CONTENDER[kind]).acquire(blocking=False)
        await until(lambda: context.stats().renewed >= 2)
    assert traces(real) == []
    await client.aclose()


def test_many_at_once_and_a_handoff(real: Backend) -> None:
    context = real.context_of(valkey.Valkey(port=real.port))
    locks = context.acquire_many([f"shard:{number}" for number in range(500)])
    assert all(locks.values())
    context.release_many(locks.values())
    lock = context.lock("order:42", fencing=True)
    assert lock.acquire()
    assert real.context().adopt(lock.export()).fence == lock.fence


# Settings of clients


@pytest.mark.parametrize(
    "settings",
    [{"decode_responses": True}, {"protocol": 3}, {"encoding": "latin-1"}, {"client_name": "billing"}],
    ids=str,
)
def test_a_client_may_be_configured_as_it_likes(real: Backend, settings: dict[str, Any]) -> None:
    works(LockContext(valkey.Valkey(port=real.port, **settings)), real.view)
    works(LockContext(valkey.asyncio.Valkey(port=real.port, **settings)), real.view)


def test_a_database_a_user_and_a_unix_socket(unix_redis: RedisServer) -> None:
    with unix_redis.client() as admin:
        admin.acl_setuser(
            "billing", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], channels=["*"], categories=["+@all"]
        )
    path = unix_redis.url.removeprefix("unix://").partition("?")[0]
    settings: dict[str, Any] = {"unix_socket_path": path, "username": "billing", "password": SECRET, "db": 3}
    context = LockContext(valkey.Valkey(**settings))
    assert SECRET not in repr(context)
    with redis.Redis(**settings) as view:
        works(context, view)


def test_a_credential_provider_and_a_function_for_each_connection(fresh_redis: RedisServer) -> None:
    class Provider(valkey.CredentialProvider):
        asked = 0

        def get_credentials(self) -> tuple[str]:
            self.asked += 1
            return (SECRET,)

    with fresh_redis.client() as admin:
        admin.config_set("requirepass", SECRET)
    greeted: list[Any] = []

    def greet(connection: Any) -> None:
        connection.on_connect()
        greeted.append(connection)

    provider = Provider()
    address: dict[str, Any] = {"host": "127.0.0.1", "port": fresh_redis.port}
    with redis.Redis(password=SECRET, **address) as view:
        works(LockContext(valkey.Valkey(credential_provider=provider, **address)), view)
        assert provider.asked
        works(LockContext(valkey.Valkey(password=SECRET, valkey_connect_func=greet, **address)), view)
        assert greeted
        works(LockContext(valkey.asyncio.Valkey(credential_provider=Provider(), **address)), view)


def test_tls_as_the_client_is_configured(tls_redis: RedisServer, tls_files: TlsFiles) -> None:
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": tls_redis.tls_port, "ssl": True}
    with tls_redis.client() as view:
        works(LockContext(valkey.Valkey(**settings, ssl_ca_certs=str(tls_files.ca))), view)
        works(LockContext(valkey.asyncio.Valkey(**settings, ssl_ca_certs=str(tls_files.ca))), view)
    refused = pytest.raises(LockUnavailable, match="certificate verify failed")
    with LockContext(valkey.Valkey(**settings), response_timeout=1.0) as context, refused:
        context.lock("order:42").acquire()


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


# Errors


def test_an_unreachable_server_raises_redis_pys_connection_error(real: Backend) -> None:
    refused = pytest.raises(redis.ConnectionError)
    with LockContext(valkey.Valkey(port=1), response_timeout=0.5) as context, refused as caught:
        context.lock("order:42").acquire()
    assert not isinstance(caught.value, valkey.ValkeyError)


def test_a_class_of_connections_of_the_users_own_is_refused(real: Backend) -> None:
    class Tunnel(valkey.Connection):
        pass

    pool = valkey.ConnectionPool(connection_class=Tunnel, port=real.port)
    with pytest.raises(TypeError, match=r"Tunnel are not supported: of valkey-py's clients only"):
        LockContext(valkey.Valkey(connection_pool=pool))


def test_a_pipeline_or_a_pool_is_no_client(real: Backend) -> None:
    for wrong in (valkey.ConnectionPool(), valkey, None):
        with pytest.raises(TypeError, match=r"expected a redis\.Redis"):
            LockContext(wrong)  # type: ignore[arg-type]


# One context for a client


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
