"""Shared contexts: they go with their clients, whatever those were configured with, and greet as those do until then."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
from redis.backoff import NoBackoff
from redis.cluster import LoadBalancingStrategy
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

from tests.support.redis_server import RedisServer
from tests.support.tls import TlsFiles
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import Nodes
from wheel_lock import LockContext
from wheel_lock.net import client_references
from wheel_lock.redis_lock import AsyncLock, Lock

HOST = "127.0.0.1"
READING: dict[str, Any] = {"load_balancing_strategy": LoadBalancingStrategy.ROUND_ROBIN}  # from replicas, too
SERVICE = "locks"


class Place:
    """Servers of every kind that a client may be for."""

    def __init__(self, stack: ExitStack, tls: TlsFiles, cluster: Nodes) -> None:
        self.server = stack.enter_context(RedisServer(tls=tls, unixsocket=True))
        watching = f"sentinel monitor {SERVICE} {HOST} {self.server.port} 1"
        self.sentinel = stack.enter_context(RedisServer(watching, sentinel=True))
        self.cluster = cluster
        self.tcp: dict[str, Any] = {"host": HOST, "port": self.server.port}
        self.tls: dict[str, Any] = {
            "host": HOST,
            "port": self.server.tls_port,
            "ssl": True,
            "ssl_ca_certs": str(tls.ca),
        }
        self.unix: dict[str, Any] = {"unix_socket_path": str(self.server.unix_path)}
        self.nodes: dict[str, Any] = {"host": HOST, "port": self.cluster.servers[0].port}
        self.sentinels = [(HOST, self.sentinel.port)]
        asking = Sentinel(self.sentinels)
        eventually(lambda: asking.discover_master(SERVICE)[1] == self.server.port)


@pytest.fixture(scope="module")
def place(tls_files: TlsFiles, cluster_without_replicas: Nodes) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack, tls_files, cluster_without_replicas)


greeted: list[str] = []
"""Who was greeted by functions that belong to clients."""


@pytest.fixture(autouse=True)
def forget() -> None:
    greeted.clear()


# Clients that are referred to by what they are configured with


class Greeting(redis.Redis):
    """One whose own method greets, and whose retries and credentials know it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"redis_connect_func": self.greet, "retry": Persistent(self), **settings})

    def greet(self, connection: Any) -> None:
        greeted.append("own")
        connection.on_connect()


class Persistent(Retry):
    def __init__(self, client: object) -> None:
        super().__init__(NoBackoff(), 1)
        self.client = client

    def __deepcopy__(self, memo: object) -> Persistent:
        return self


class Provider(CredentialProvider):
    """Credentials of a caller that knows the client."""

    client: object

    def get_credentials(self) -> tuple[str, str]:
        greeted.append("provider")
        return "default", ""


class OnlyAwaited(CredentialProvider):
    client: object

    async def get_credentials_async(self) -> tuple[str, str]:
        greeted.append("provider")
        return "default", ""

    get_credentials = CredentialProvider.get_credentials


class GreetingCluster(redis.RedisCluster):
    """One whose own method is what the user has asked for, and one that says where its nodes are."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(redis_connect_func=self.greet, address_remap=self.remap, **settings)

    def greet(self, connection: Any) -> None:
        greeted.append("own")

    def remap(self, place: tuple[str, int]) -> tuple[str, int]:
        return place


def with_provider(kind: Any, provider: Any, place: Place) -> Any:
    """A client whose credentials know it."""
    provider.client = kind(credential_provider=provider, **place.tcp)
    return provider.client


CLIENTS: dict[str, Callable[[Place], Any]] = {
    "tcp": lambda place: redis.Redis(**place.tcp),
    "tls": lambda place: redis.Redis(**place.tls),
    "unix": lambda place: redis.Redis(**place.unix),
    "own method": lambda place: Greeting(**place.tcp),
    "provider": lambda place: with_provider(redis.Redis, Provider(), place),
    "sentinel": lambda place: Sentinel(place.sentinels).master_for(SERVICE),
    "cluster": lambda place: redis.RedisCluster(**place.nodes),
    "cluster, replicas read": lambda place: redis.RedisCluster(**READING, **place.nodes),
    "cluster, own method": lambda place: GreetingCluster(**place.nodes),
    "asyncio tcp": lambda place: redis.asyncio.Redis(**place.tcp),
    "asyncio provider": lambda place: with_provider(redis.asyncio.Redis, OnlyAwaited(), place),
    "asyncio sentinel": lambda place: redis.asyncio.sentinel.Sentinel(place.sentinels).master_for(SERVICE),
    "asyncio cluster": lambda place: redis.asyncio.RedisCluster(**place.nodes),
    "asyncio cluster, replicas read": lambda place: redis.asyncio.RedisCluster(**READING, **place.nodes),
}
OWN = {"own method": "own", "provider": "provider", "asyncio provider": "provider", "cluster, own method": "own"}


def use(client: Any) -> list[weakref.ref[Any]]:
    """Use a client, and close it; return what is to go with it."""
    context = LockContext.shared(client)
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):

        async def main() -> None:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(client.aclose)
                async with client.lock("order:42", timeout=5.0, lock_class=AsyncLock):
                    pass

        asyncio.run(main())
    else:
        with client.lock("order:42", timeout=5.0, lock_class=Lock):
            pass
        client.close()
    with context.lock("order:43"):
        pass
    parts = client, context, getattr(client, "connection_pool", client)
    return [weakref.ref(part) for part in parts]


def gone(references: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


@pytest.mark.parametrize("kind", CLIENTS)
def test_clients_that_were_used_and_dropped_go_with_their_contexts(place: Place, kind: str) -> None:
    references = [reference for _ in range(3) for reference in use(CLIENTS[kind](place))]
    eventually(partial(gone, references))
    assert not OWN.get(kind) or OWN[kind] in greeted


@pytest.mark.parametrize("kind", OWN)
def test_what_belongs_to_a_client_greets_each_connection_while_that_is_there(place: Place, kind: str) -> None:
    client = CLIENTS[kind](place)
    context = LockContext.shared(client)
    greeted.clear()
    with context.lock("order:42", timeout=5.0, renew_every=0.1, thread_local=False) as lock:
        connects = context.stats().connects
        assert greeted.count(OWN[kind]) >= connects >= 1
        gc.collect()
        hang_up(place)
        eventually(lambda: context.stats().connects > connects)
        renewals = lock.renewals
        eventually(lambda: lock.renewals > renewals)
        assert greeted.count(OWN[kind]) > connects
    context.close()


def hang_up(place: Place) -> None:
    for server in (place.server, *place.cluster.masters):
        with server.client() as admin:
            for connection in admin.client_list():
                if connection["name"].startswith("wheel_lock:"):
                    admin.client_kill_filter(_id=connection["id"])


@pytest.mark.parametrize("kind", ["cluster, replicas read", "asyncio cluster, replicas read"])
def test_no_connection_of_a_context_is_for_reading_from_replicas(place: Place, kind: str) -> None:
    client = CLIENTS[kind](place)
    with LockContext(client) as context:
        for number in range(10):
            with context.lock(f"order:{number}"):
                pass
        for server in place.cluster.masters:
            with server.client() as admin:
                ours = [one for one in admin.client_list() if one["name"].startswith("wheel_lock:")]
                assert ours
                assert not any("r" in one["flags"] for one in ours)
    if isinstance(client, redis.RedisCluster):
        client.close()


def test_a_client_whose_function_went_with_it_is_said_to_be_gone(place: Place) -> None:
    client = CLIENTS["own method"](place)
    reference = weakref.ref(client.connection_pool)
    connector: Any = LockContext.shared(client)._connector
    del client
    eventually(partial(gone, [reference]))
    with pytest.raises(ConnectionError, match="is gone, and its settings with it"):
        connector.connect(2.0)


def test_a_large_program_behind_a_setting_is_not_searched(place: Place) -> None:
    provider: Any = Provider()
    provider.program = [[number] for number in range(100_000)]
    client = redis.Redis(credential_provider=provider, **place.tcp)
    looked_at: list[object] = []
    parts = client_references._parts

    def counted(one: object) -> Any:
        looked_at.append(one)
        return parts(one)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client_references, "_parts", counted)
        LockContext.shared(client).close()
    assert 1 <= len(looked_at) < 5000
