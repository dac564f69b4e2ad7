"""Which connector fits which client: one server, a master that Sentinels name, or a cluster."""

from __future__ import annotations

import redis
import redis.asyncio

from wheel_lock.engine.connect import RedisPyConnector
from wheel_lock.engine.sentinel import SentinelConnector
from wheel_lock.engine.slots import ClusterConnector

AnyClient = redis.Redis | redis.asyncio.Redis | redis.RedisCluster | redis.asyncio.RedisCluster


def connector_for(client: AnyClient) -> RedisPyConnector | ClusterConnector:
    """Return what connects as ``client`` would.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster)):
        return ClusterConnector(client)
    if hasattr(getattr(client, "connection_pool", None), "sentinel_manager"):
        return SentinelConnector(client)
    return RedisPyConnector(client)
