"""Which clients redis-py's Lock, renewed, is for: others are refused."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.commands.core import AsyncScript
from redis.sentinel import Sentinel

from tests.support.backend import LONG_S, Backend
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.redis_lock import AsyncLock, Lock

NAME = "order:42"


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


async def serves_a_task(client: Any) -> None:
    async with client.lock(NAME, timeout=3.0, lock_class=AsyncLock) as lock:
        assert await lock.owned()


async def test_clients_of_a_master_that_sentinels_watch_are_served() -> None:
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

        others = AsyncSentinel(address)
        of_tasks = others.master_for("locks")
        await serves_a_task(of_tasks)
        for used in (of_tasks, *others.sentinels):
            await used.aclose()
        assert not master.client().exists(NAME)


async def test_clients_of_a_cluster_are_served() -> None:
    with RedisServer("cluster-enabled yes") as server:
        server.client().execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(lambda: b"cluster_state:ok" in server.admin.execute_command("CLUSTER", "INFO"), LONG_S)
        cluster = redis.RedisCluster(host="127.0.0.1", port=server.port)
        with cluster.lock(NAME, timeout=3.0, lock_class=Lock) as lock:
            assert lock.owned()
            assert not cluster.lock(NAME, timeout=3.0, lock_class=Lock).acquire(blocking=False)
        assert not cluster.exists(NAME)
        cluster.close()

        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=server.port) as client:
            await serves_a_task(client)
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
