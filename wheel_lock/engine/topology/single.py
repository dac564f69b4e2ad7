"""One server, or one master: every name lives there for ever. The other routers inherit from this one."""

from __future__ import annotations

from collections.abc import Callable

from wheel_lock.engine.interfaces import Router
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.renewal.tracking import Tracking, WatchedKeys, WatchingRenewer
from wheel_lock.net.connector import Connector
from wheel_lock.net.pubsub import PubSub
from wheel_lock.runtime.ends import End, end_all
from wheel_lock.runtime.timer import HashedWheelTimer


class SingleRouter(Router):
    """The router of one node, and the base class of all routers. Timer's thread only, but for what says otherwise.

    Args:
        leases: The leases of the engine.
        connector: Connects to the node.

    Attributes:
        wakeups: The subscriptions of the engine's waiters.
        listeners: All connections for pub/sub.
        only_renewer: The renewer, if there is one server for ever; None if names may move to another one.
    """

    def __init__(self, leases: LeaseTable, connector: Connector) -> None:
        self.leases = leases
        self.timer: HashedWheelTimer = leases.timer
        self._watched = WatchedKeys(leases) if leases.state.options.watch else None
        self.renewer: Renewer = self.new_renewer(connector)
        self.only_renewer: Renewer | None = self.renewer
        self.shards: list[Renewer] = [self.renewer]
        self.wakeups: PubSub = self._new_wakeups()
        self.listeners: list[PubSub] = [self.wakeups]

    def new_renewer(self, connector: Connector) -> Renewer:
        """Return a renewer for the node of ``connector``, which watches its locks if that is configured."""
        if self._watched is None:
            return Renewer(self.leases, self, connector)
        return WatchingRenewer(self.leases, self, connector, self._watched)

    def _new_wakeups(self) -> PubSub:
        return self.listen_to(self.renewer.node.connector.listener())

    def listen_to(self, connector: Connector, on_moved: Callable[[], object] | None = None) -> PubSub:
        """Return a connection for pub/sub; with ``on_moved``, called when channels have moved, for sharded pub/sub."""
        state = self.leases.state
        return PubSub(state.timer, connector, state.options, state.launch, state, on_moved)

    @property
    def trackings(self) -> list[Tracking]:
        """The tracking of each node, if held locks are watched."""
        return [renewer.tracking for renewer in self.shards if isinstance(renewer, WatchingRenewer)]

    @property
    def watching(self) -> bool:
        """True if each node that is asked to watch held locks does. From any thread."""
        asked = [tracking for tracking in self.trackings if tracking.wanted]
        return bool(asked) and all(tracking.on for tracking in asked)

    @property
    def busy(self) -> bool:
        """True if a request waits for its reply, or for a connection."""
        return self.wakeups.busy or any(node.busy for node in self.nodes)

    def shard_of(self, key: bytes) -> Renewer:
        return self.renewer

    def end(self, how: End, error: Exception) -> None:
        """End the nodes and the connections for pub/sub, and forget the questions to Sentinels and nodes."""
        end_all((*self.shards, *self.listeners), how, error)
