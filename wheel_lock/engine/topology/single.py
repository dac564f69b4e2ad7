"""One server, or one master: every name lives there for ever. The other routers are made of this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wheel_lock.engine.interfaces import LeaseGroup, RoutedRequest, Shard
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.lease import Lease
from wheel_lock.net.connector import Connector
from wheel_lock.net.node import Node
from wheel_lock.net.pubsub import PubSub
from wheel_lock.protocol.server_errors import ServerError


class SingleRouter:
    """The router of one node; see ``Router``. Timer's thread only, but for :meth:`shard_of` and :meth:`group_of`.

    Args:
        leases: The leases of the engine.
        connector: What connects to the node.

    Attributes:
        shards: The renewer of each node.
        wakeups: The subscriptions of the engine's waiters.
        listeners: All connections for pub/sub.
    """

    stable = True
    known = True

    def __init__(self, leases: LeaseTable, connector: Connector) -> None:
        self.leases = leases
        self.timer = leases.timer
        self.renewer = Renewer(leases, self, connector)
        self.shards = [self.renewer]
        self.wakeups = self._new_wakeups()
        self.listeners = [self.wakeups]

    def _new_wakeups(self) -> PubSub:
        return self.listen_to(self.renewer.node.connector.listener())

    def listen_to(self, connector: Connector, on_moved: Callable[[], object] | None = None) -> PubSub:
        """Return a connection for pub/sub: for sharded pub/sub with ``on_moved``, called when channels live elsewhere."""
        state = self.leases.state
        return PubSub(state.timer, connector, state.options, state.launch, state, on_moved)

    @property
    def nodes(self) -> list[Node]:
        """All nodes, each once for each of its connections."""
        return [node for renewer in self.shards for node in renewer.nodes]

    @property
    def busy(self) -> bool:
        """Whether a request waits for its reply, or for a connection."""
        return self.wakeups.busy or any(node.busy for node in self.nodes)

    def owns_names(self, shard: Shard) -> bool:
        """Whether any name lives on a node."""
        return True

    def shard_of(self, key: bytes) -> Renewer:
        """Return what renews the leases of a name. From any thread."""
        return self.renewer

    def group_of(self, group: LeaseGroup, key: bytes) -> LeaseGroup:
        """Return ``group``: a name does not move."""
        return group

    def redirect(self, request: RoutedRequest, error: ServerError) -> bool:
        """Return False: one server does not redirect."""
        return False

    def resend(self, request: RoutedRequest) -> None:
        """Send a request once more."""
        request.resend()

    def refused(self, node: Node, errors: Iterable[ServerError]) -> None:
        """Check where the master is if a node has refused renewals because it is a replica."""
        demoted = next((error for error in errors if error.code == "READONLY"), None)
        if demoted is not None:
            node.demoted(demoted)

    def refresh(self) -> None:
        """Do nothing: there is no slot map."""

    def ready(self) -> None:
        """Do nothing when the node is connected."""

    def queued(self) -> None:
        """Do nothing while a request waits for a connection."""

    def migrate(self, lease: Lease, shard: Shard) -> None:
        """Do nothing: there is no other node."""

    def rehome(self, leases: Iterable[Lease]) -> list[Lease]:
        """Return all ``leases``: they are in the right place."""
        return list(leases)

    def assign(self, lease: Lease) -> None:
        """Do nothing: a lease has the group that it was made with."""

    def when_known(self, begin: Callable[[], object]) -> None:
        """Call ``begin()``."""
        begin()

    def watch_master(self) -> None:
        """Do nothing: nobody would name another master."""

    def begin_anew(self, begin: Callable[[PubSub], object]) -> None:
        """Have ``begin()`` done to every connection for pub/sub, and forget what is being asked."""
        for wakeups in self.listeners:
            begin(wakeups)

    def after_fork_in_child(self) -> None:
        """Drop, in a forked child, what only the parent process will be answered."""
        for wakeups in self.listeners:
            wakeups.after_fork_in_child()
