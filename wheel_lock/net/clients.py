"""The client for a URL, and the connector for a client of one server, of Sentinels, or of a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from redis.connection import parse_url

from wheel_lock import valkey_clients
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.net.sentinel import SentinelConnector

if TYPE_CHECKING:
    import valkey
    import valkey.asyncio

    AnyClient = (
        redis.Redis
        | redis.asyncio.Redis
        | redis.RedisCluster
        | redis.asyncio.RedisCluster
        | valkey.Valkey
        | valkey.asyncio.Valkey
        | valkey.ValkeyCluster
        | valkey.asyncio.ValkeyCluster
    )
else:
    AnyClient = redis.Redis | redis.asyncio.Redis | redis.RedisCluster | redis.asyncio.RedisCluster

_SCHEME = re.compile(r"(redis|rediss|unix)://")
_AUTHORITY = re.compile(r"[^/?#]*")  # user, password, host and port
_POOL_SETTINGS = ("connection_class", "max_connections")


def client_at(url: str, **settings: Any) -> redis.Redis:
    """Return a client of the server at ``url``; the arguments are those of ``redis.Redis.from_url``.

    Raises:
        ValueError: The URL is malformed. The message shows no part of it, because any part may belong to the password.
    """
    if _is_sound(url):
        return redis.Redis.from_url(url, **settings)
    raise ValueError(
        "url must be a scheme and a server, as redis://[user:password@]host:6379/0, rediss://host:6379/0 or unix:///path; "
        "in user and password whatever means something in a URL is written as in percent-encoding: %2F for a slash"
    )


def _is_sound(url: str) -> bool:
    """Return whether redis-py accepts the URL, and no special character in the password has ended it early."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return False
    authority = _AUTHORITY.match(url, scheme.end())
    assert authority is not None
    path, _, query = url[authority.end() :].partition("?")
    ended_early = "@" not in authority[0] and ("@" in path or "@" in query.partition("=")[0])
    if ended_early and (authority[0] or scheme[1] != "unix"):
        return False  # a slash, question mark or number sign in the password has ended the host
    try:
        settings: dict[str, Any] = parse_url(url)
        connection_class: type[Any] = settings.get("connection_class", redis.Connection)
        connection_class(**{name: value for name, value in settings.items() if name not in _POOL_SETTINGS})
    except (ValueError, TypeError, redis.RedisError):  # their texts may quote a part of the password
        return False
    return True


def connector_for(client: AnyClient) -> RedisPyConnector | ClusterConnector:
    """Return the connector that connects like ``client``. Raises TypeError if that client is not supported."""
    like_redis_pys: Any = client  # also one of valkey-py
    if isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster)) or valkey_clients.is_cluster_client(client):
        return ClusterConnector(like_redis_pys)
    if hasattr(getattr(client, "connection_pool", None), "sentinel_manager"):
        return SentinelConnector(like_redis_pys)
    return RedisPyConnector(like_redis_pys)
