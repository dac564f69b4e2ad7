"""Which router a connector needs: topology is decided here and nowhere else."""

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
