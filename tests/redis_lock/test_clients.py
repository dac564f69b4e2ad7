"""Which clients redis-py's Lock, renewed, is for: however an asyncio client connects, the engine does likewise."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.commands.core import AsyncScript
from redis.credentials import CredentialProvider
from redis.sentinel import Sentinel

from tests.support.backend import LONG_S, Backend
from tests.support.event_loops import until
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.redis_lock import AsyncLock, Lock

NAME = "order:42"
SECRET = "a-password-that-must-not-be-shown"


def works(client: redis.asyncio.Redis, view: redis.Redis) -> None:
    """The whole life of a lock, with a waiter and a renewal."""

    async def main() -> None:
        lock: Any = client.lock(NAME, timeout=1.5, lock_class=AsyncLock)
        async with lock:
            assert view.get(NAME) == lock.local.token
            waiter: Any = client.lock(NAME, timeout=30, sleep=30, lock_class=AsyncLock)
            waiting = asyncio.create_task(waiter.acquire())
            renewed = LockContext.shared(client).stats().renewed
            await until(lambda: LockContext.shared(client).stats().renewed > renewed)
        async with asyncio.timeout(LONG_S):
            assert await waiting
            await waiter.release()
        await LockContext.shared(client).asyncio.close()
        await client.aclose()

    asyncio.run(main())


# Asyncio clients


@pytest.mark.parametrize("transport", ["tls_redis", "unix_redis"])
def test_a_url(request: pytest.FixtureRequest, transport: str) -> None:
    server: RedisServer = request.getfixturevalue(transport)
    works(redis.asyncio.Redis.from_url(server.url), server.client())


class Both(CredentialProvider):
    asked: str = ""

    def get_credentials(self) -> tuple[str, str]:
        self.asked += "b"
        return "app", SECRET

    async def get_credentials_async(self) -> tuple[str, str]:
        self.asked += "a"
        return "app", SECRET


class OnlyAwaited(CredentialProvider):
    def __init__(self) -> None:
        self.threads: set[str] = set()

    async def get_credentials_async(self) -> tuple[str, str]:
        await asyncio.sleep(0.001)
        self.threads.add(threading.current_thread().name)
        return "app", SECRET


def test_passwords_and_providers_of_them() -> None:
    with RedisServer(password="the-default-users", users=[f"app on >{SECRET} ~* &* +@all"]) as server:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": server.port}
        works(redis.asyncio.Redis(**where, password="the-default-users"), server.client())
        works(redis.asyncio.Redis(**where, username="app", password=SECRET), server.client())
        both, only_awaited = Both(), OnlyAwaited()
        works(redis.asyncio.Redis(**where, credential_provider=both), server.client())
        works(redis.asyncio.Redis(**where, credential_provider=only_awaited), server.client())
        assert "b" in both.asked
        assert any(name.startswith("wheel-lock") for name in only_awaited.threads)


def test_scripts_that_are_called_without_a_client_get_one_that_is_there(real: Backend) -> None:
    def take_and_go() -> None:
        client = redis.Redis(port=real.port)
        with client.lock(NAME, timeout=5.0, lock_class=Lock):
            pass
        client.close()

    take_and_go()
    gc.collect()
    lock: Any = Lock(redis.Redis(port=real.port), NAME, timeout=5.0)
    assert lock.lua_release(keys=[NAME], args=["another's"]) == 0
    lock.redis.close()


def test_a_context_of_ones_own_takes_an_asyncio_client(real: Backend) -> None:
    client = redis.asyncio.Redis(host="127.0.0.1", port=real.port)
    with LockContext(client) as context, context.lock(NAME) as lock:
        assert lock.owned()
        assert f"127.0.0.1:{real.port}" in repr(context)


# What cannot work is refused when the lock is made


class Tunnel(redis.asyncio.Connection):
    """A connection that only its own class knows how to make."""


async def hello(connection: Any) -> None: ...


def test_an_asyncio_connection_of_an_unknown_class_is_refused() -> None:
    pool = redis.asyncio.ConnectionPool(connection_class=Tunnel)
    with pytest.raises(TypeError, match="Tunnel"):
        redis.asyncio.Redis(connection_pool=pool).lock(NAME, lock_class=AsyncLock)


def test_a_greeting_that_can_only_be_awaited_is_refused() -> None:
    client = redis.asyncio.Redis(redis_connect_func=hello)
    with pytest.raises(TypeError, match="redis_connect_func"):
        client.lock(NAME, lock_class=AsyncLock)


def test_each_class_is_for_its_own_kind_of_client() -> None:
    theirs: Any = AsyncLock
    with pytest.raises(TypeError, match=r"AsyncLock is for an asyncio client, not for a redis\.client one"):
        redis.Redis().lock(NAME, lock_class=theirs)
    theirs = Lock
    with pytest.raises(TypeError, match=r"Lock is for a synchronous client, not for a redis\.asyncio\.client one"):
        redis.asyncio.Redis().lock(NAME, lock_class=theirs)
    for own in (Lock, AsyncLock):  # which keep their scripts per class
        script: Any = own.lua_release
        assert script is None or isinstance(script, AsyncScript) is (own is AsyncLock)


def test_clients_of_a_master_that_sentinels_watch_are_served() -> None:
    with (
        RedisServer() as master,
        RedisServer(f"sentinel monitor locks 127.0.0.1 {master.port} 1", sentinel=True) as sentinel,
    ):
        address = [("127.0.0.1", sentinel.port)]
        asking = Sentinel(address)
        with asking.master_for("locks") as client, client.lock(NAME, timeout=3.0, lock_class=Lock) as lock:
            assert lock.owned()
            assert master.client().get(NAME) == lock.local.token
        for asked in asking.sentinels:
            asked.close()

        async def main() -> None:
            asking = AsyncSentinel(address)
            client = asking.master_for("locks")
            async with client.lock(NAME, timeout=3.0, lock_class=AsyncLock) as held:
                assert await held.owned()
            for used in (client, *asking.sentinels):
                await used.aclose()

        asyncio.run(main())
        assert not master.client().exists(NAME)


def test_clients_of_a_cluster_are_served() -> None:
    with RedisServer("cluster-enabled yes") as server:
        server.client().execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(lambda: b"cluster_state:ok" in server.admin.execute_command("CLUSTER", "INFO"), LONG_S)
        cluster = redis.RedisCluster(host="127.0.0.1", port=server.port)
        with cluster.lock(NAME, timeout=3.0, lock_class=Lock) as lock:
            assert lock.owned()
            assert not cluster.lock(NAME, timeout=3.0, lock_class=Lock).acquire(blocking=False)
        assert not cluster.exists(NAME)
        cluster.close()

        async def main() -> None:
            async with (
                redis.asyncio.RedisCluster(host="127.0.0.1", port=server.port) as client,
                client.lock(NAME, timeout=3.0, lock_class=AsyncLock) as held,
            ):
                assert await held.owned()

        asyncio.run(main())
        assert not server.client().exists(NAME)


# Clients of valkey-py


async def test_an_asyncio_client_of_valkey_py_is_served(real: Backend) -> None:
    client: Any = valkey.asyncio.Valkey(port=real.port)
    lock: Any = client.lock(NAME, timeout=3.0, lock_class=AsyncLock)
    async with lock:
        assert real.view.get(NAME) == lock.local.token
        assert not await client.lock(NAME, timeout=3.0).acquire(blocking=False)
    with pytest.raises(TypeError, match="for a synchronous client"):
        client.lock(NAME, lock_class=Lock)
    await LockContext.shared(client).asyncio.close()
    await client.aclose()
