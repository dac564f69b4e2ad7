"""The clients of redis-py and of valkey-py, read alike: their kinds, and the class and the settings of their connections.

valkey-py is a fork of redis-py, and its clients have the same attributes. redis-py makes the connections for them, with the
same settings. valkey-py is never imported here: a program that has not imported it has none of its clients.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.utils import HIREDIS_AVAILABLE

# Settings without a counterpart: redis-py packs commands and parses replies, and caches nothing for the library.
_DROPPED = (
    *("cache_enabled", "client_cache", "cache_max_size", "cache_ttl", "cache_policy"),
    *("cache_deny_list", "cache_allow_list", "command_packer", "lib_name", "lib_version"),
)
# What connects to a known server like the classes of these names, of either package, synchronous or for asyncio.
_CONNECTIONS = {
    "Connection": redis.Connection,
    "SSLConnection": redis.SSLConnection,
    "UnixDomainSocketConnection": redis.UnixDomainSocketConnection,
    "SentinelManagedConnection": redis.Connection,
    "SentinelManagedSSLConnection": redis.SSLConnection,
}


class Kind(NamedTuple):
    """A kind of clients.

    Attributes:
        package: The name of their package, ``redis`` or ``valkey``.
        place: The module of their class: the package, or its ``asyncio``.
        client_class: Their class.
    """

    package: str
    place: Any
    for_asyncio: bool
    is_cluster: bool
    client_class: type[Any]


def _places() -> list[tuple[str, Any]]:
    """Return the modules with classes of clients and connections, and the names of their packages."""
    valkey = sys.modules.get("valkey")
    is_complete = hasattr(valkey, "Valkey") and hasattr(valkey, "ValkeyCluster")
    packages: list[Any] = [redis, valkey] if is_complete else [redis]
    return [(package.__name__, place) for package in packages for place in (package, package.asyncio)]


def kind_of(client: Any) -> Kind | None:
    """Return the kind of a client; None if it is none of either package."""
    return _kind_of(client.__class__)  # also that of what a lazy proxy stands for


@lru_cache
def _kind_of(client_class: type[Any]) -> Kind | None:
    for package, place in _places():
        for name in (package.title(), f"{package.title()}Cluster"):
            if issubclass(client_class, own := getattr(place, name)):
                return Kind(package, place, place.__name__ != package, name.endswith("Cluster"), own)
    return None


def encoder_of(client: Any) -> Any:
    """Return what encodes values by the settings of a client of either package, for one server or a cluster."""
    return getattr(client, "connection_pool", client).get_encoder()


def key_as_sent(client: Any, key: object) -> bytes:
    """Return a key as a client of either package sends it. hiredis and libvalkey send text as UTF-8 in any case."""
    return key.encode() if isinstance(key, str) and _packs_utf8(client) else bytes(encoder_of(client).encode(key))


def _packs_utf8(client: object) -> bool:
    kind = kind_of(client)
    if kind is None or kind.for_asyncio:
        return False
    return HIREDIS_AVAILABLE if kind.package == "redis" else bool(kind.place.utils.LIBVALKEY_AVAILABLE)


def connection_errors() -> tuple[type[Exception], ...]:
    """Return the classes of the connection errors that a user's Sentinel object may raise."""
    return tuple(place.ConnectionError for _, place in _places())


def node_client(client: Any) -> Any:
    """Return a client for a node of the cluster of ``client``; the settings are the same for all nodes."""
    kind = kind_of(client)
    assert kind is not None
    if not kind.for_asyncio:
        return getattr(client.get_default_node(), f"{kind.package}_connection")
    first = next(iter(client.nodes_manager.startup_nodes.values()))
    settings = dict(first.connection_kwargs)
    if greets_as_usual(client):
        settings.pop(f"{kind.package}_connect_func", None)  # READONLY, which is for replicas
    pool = kind.place.ConnectionPool(connection_class=first.connection_class, **settings)
    return getattr(kind.place, kind.package.title())(connection_pool=pool)


def greets_as_usual(client: Any) -> bool:
    """Return whether a client of a cluster greets its nodes as its package does."""
    kind = kind_of(client)
    return kind is not None and type(client).on_connect is kind.client_class.on_connect


def synchronous(connection_class: type[Any]) -> type[Any]:
    """Return redis-py's class that connects to a known server like ``connection_class``, or a user's own class itself."""
    for name, synchronous in _CONNECTIONS.items():
        if any(connection_class is getattr(place, name) for _, place in _places()):
            return synchronous
    return connection_class


def as_redis_pys(connection_class: type[Any], settings: dict[str, Any]) -> None:
    """Turn ``settings`` of a connection of valkey-py into redis-py's.

    Raises:
        TypeError: The class is a user's own.
    """
    if synchronous(connection_class) is connection_class:
        raise TypeError(
            f"connections of the class {connection_class.__name__} are not supported: of valkey-py's clients only those "
            "with valkey-py's own connection classes are"
        )
    for name in _DROPPED:
        settings.pop(name, None)
    if "valkey_connect_func" in settings:
        settings["redis_connect_func"] = settings.pop("valkey_connect_func")
    if issubclass(synchronous(connection_class), redis.SSLConnection):
        settings.setdefault("ssl_check_hostname", False)  # valkey-py's default, which is not redis-py's
