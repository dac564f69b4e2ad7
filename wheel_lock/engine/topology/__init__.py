"""The nodes of leases: one server, the master that Sentinels name, or the masters of a cluster.

The topology is decided here and nowhere else. Questions to Sentinels and cluster nodes are in :mod:`wheel_lock.net`.
"""

from __future__ import annotations

from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.topology.cluster import ClusterRouter
from wheel_lock.engine.topology.sentinel import SentinelRouter
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.net.connector import Connector
from wheel_lock.net.sentinel import SentinelConnector

AnyConnector = Connector | ClusterConnector


def router_for(connector: AnyConnector, leases: LeaseTable) -> SingleRouter:
    """Return the router of the engine whose leases are ``leases``."""
    if isinstance(connector, ClusterConnector):
        return ClusterRouter(leases, connector)
    if isinstance(connector, SentinelConnector):
        return SentinelRouter(leases, connector)
    return SingleRouter(leases, connector)
