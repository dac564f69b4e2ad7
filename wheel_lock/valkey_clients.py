"""valkey-py's clients, read as redis-py's: the class and the settings of their connections.

valkey-py is a fork of redis-py, and its clients have the same attributes. redis-py makes the connections for them, with the
same settings. valkey-py is never imported here: a program that has not imported it has none of its clients.
"""

from __future__ import annotations

import sys
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.utils import HIREDIS_AVAILABLE

# Settings without a counterpart: redis-py packs commands and parses replies, and caches nothing for the library.
_DROPPED = (
    *("cache_enabled", "client_cache", "cache_max_size", "cache_ttl", "cache_policy"),
    *("cache_deny_list", "cache_allow_list", "command_packer", "lib_name", "lib_version"),
)


def _valkey() -> Any:
    """Return the package if the program has imported it, None otherwise."""
    valkey = sys.modules.get("valkey")
    return valkey if hasattr(valkey, "Valkey") and hasattr(valkey, "ValkeyCluster") else None  # imported completely


def is_client(client: object) -> bool:
    """Return whether ``client`` is one of valkey-py for one server, synchronous or for asyncio."""
    valkey = _valkey()
    return valkey is not None and isinstance(client, (valkey.Valkey, valkey.asyncio.Valkey))


def is_cluster_client(client: object) -> bool:
    """Return whether ``client`` is one of valkey-py for a cluster, synchronous or for asyncio."""
    valkey = _valkey()
    return valkey is not None and isinstance(client, (valkey.ValkeyCluster, valkey.asyncio.ValkeyCluster))


def is_for_asyncio(client: object) -> bool:
    """Return whether ``client`` is one of valkey-py for asyncio."""
    valkey = _valkey()
    return valkey is not None and isinstance(client, (valkey.asyncio.Valkey, valkey.asyncio.ValkeyCluster))


def encoder_of(client: Any) -> Any:
    """Return what encodes values by the settings of a client of either package, for one server or a cluster."""
    return getattr(client, "connection_pool", client).get_encoder()


def key_as_sent(client: Any, key: object) -> bytes:
    """Return a key as a client of either package sends it. hiredis and libvalkey send text as UTF-8 in any case."""
    return key.encode() if isinstance(key, str) and _packs_utf8(client) else bytes(encoder_of(client).encode(key))


def _packs_utf8(client: object) -> bool:
    valkey = _valkey()
    if valkey is not None and isinstance(client, (valkey.Valkey, valkey.ValkeyCluster)):
        return bool(valkey.utils.LIBVALKEY_AVAILABLE)
    return HIREDIS_AVAILABLE and isinstance(client, (redis.Redis, redis.RedisCluster))


def connection_errors() -> tuple[type[Exception], ...]:
    """Return the classes of the connection errors that a user's Sentinel object may raise."""
    valkey = _valkey()
    return redis.ConnectionError, *(() if valkey is None else (valkey.ConnectionError,))


def node_client(client: Any) -> Any:
    """Return a client of valkey-py for a node of the cluster of ``client``; the settings are the same for all nodes."""
    if not is_for_asyncio(client):
        return client.get_default_node().valkey_connection
    valkey = _valkey()
    first = next(iter(client.nodes_manager.startup_nodes.values()))
    settings = dict(first.connection_kwargs)
    if type(client).on_connect is valkey.asyncio.ValkeyCluster.on_connect:
        settings.pop("valkey_connect_func", None)  # READONLY, which is for replicas
    pool = valkey.asyncio.ConnectionPool(connection_class=first.connection_class, **settings)
    return valkey.asyncio.Valkey(connection_pool=pool)


def sends_readonly(client: Any) -> bool:
    """Return whether the synchronous cluster client greets its nodes as valkey-py does."""
    valkey = _valkey()
    return valkey is not None and type(client).on_connect is valkey.ValkeyCluster.on_connect


def as_redis_pys(connection_class: type[Any], settings: dict[str, Any]) -> type[Any]:
    """Turn ``settings`` of a connection of valkey-py into redis-py's; return redis-py's class of that connection.

    Raises:
        TypeError: The class is a user's own.
    """
    valkey = _valkey()
    classes: dict[type[Any], type[Any]] = {
        valkey.Connection: redis.Connection,
        valkey.SSLConnection: redis.SSLConnection,
        valkey.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
        valkey.SentinelManagedConnection: redis.sentinel.SentinelManagedConnection,
        valkey.SentinelManagedSSLConnection: redis.sentinel.SentinelManagedSSLConnection,
        valkey.asyncio.Connection: redis.asyncio.Connection,
        valkey.asyncio.SSLConnection: redis.asyncio.SSLConnection,
        valkey.asyncio.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
        valkey.asyncio.SentinelManagedConnection: redis.asyncio.sentinel.SentinelManagedConnection,
        valkey.asyncio.SentinelManagedSSLConnection: redis.asyncio.sentinel.SentinelManagedSSLConnection,
    }
    if connection_class not in classes:
        raise TypeError(
            f"connections of the class {connection_class.__name__} are not supported: of valkey-py's clients only those "
            "with valkey-py's own connection classes are"
        )
    for name in _DROPPED:
        settings.pop(name, None)
    if "valkey_connect_func" in settings:
        settings["redis_connect_func"] = settings.pop("valkey_connect_func")
    if issubclass(connection_class, (valkey.SSLConnection, valkey.asyncio.SSLConnection)):
        settings.setdefault("ssl_check_hostname", False)  # valkey-py's default, which is not redis-py's
    return classes[connection_class]
