"""Wake-ups in a cluster: by sharded pub/sub where the master has it, so that a message goes to one shard and not to all.

Each such master gets a connection for its channels. One more connection serves the channels of all other masters, because
all nodes pass on classic messages. When a slot moves, its channels move along.
"""

from __future__ import annotations

from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.net.capabilities import SHARDED
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.net.pubsub import Listener, PubSub
from wheel_lock.runtime.ends import End, end_all
from wheel_lock.runtime.failures import guarded


class ClusterPubSub(PubSub):
    """Subscriptions to the wake-up channels of a whole cluster. Its own connection is the one for classic messages."""

    def __init__(self, router: SingleRouter, connector: ClusterConnector) -> None:
        state = router.leases.state
        super().__init__(state.timer, connector.listener(), state.options, state.launch, state)
        self._router = router
        self._connector = connector
        self._shards: dict[Renewer, PubSub] = {}
        self._subscribed_at: dict[tuple[bytes, Listener], PubSub] = {}

    @property
    def busy(self) -> bool:
        return super().busy or any(shard.busy for shard in self._shards.values())

    def _home_of(self, channel: bytes) -> PubSub:
        """Return the subscriptions to which a channel belongs."""
        renewer = self._router.shard_of(channel)
        server = next((node.server for node in renewer.nodes if node.capability == SHARDED), None)
        if server is None:
            return self
        shard = self._shards.get(renewer)
        if shard is None:
            router = self._router
            shard = self._shards[renewer] = router.listen_to(self._connector.to(server).listener(), router.refresh)
        return shard

    def listen(self, channel: bytes, listener: Listener) -> None:
        home = self._subscribed_at[channel, listener] = self._home_of(channel)
        PubSub.listen(home, channel, listener)  # not home.listen(), which is this method if the home is this connection

    def ignore(self, channel: bytes, listener: Listener) -> None:
        PubSub.ignore(self._subscribed_at.pop((channel, listener), self), channel, listener)

    def rearrange(self) -> None:
        """Move the subscriptions to channels that live elsewhere by now."""
        for (channel, listener), home in list(self._subscribed_at.items()):
            if self._home_of(channel) is not home:
                self.ignore(channel, listener)
                guarded(listener, listener.on_subscribed, False)
                self.listen(channel, listener)
        for renewer, shard in list(self._shards.items()):
            if not shard.needed and not self._router.owns_names(renewer):
                shard.end(End.RETIRED, ConnectionAbortedError("its node owns no hash slots any more"))
                del self._shards[renewer]

    # -- all connections ---------------------------------------------------------------------------------------------

    def end(self, how: End, error: Exception) -> None:
        end_all(self._shards.values(), how, error)
        if how is not End.RETIRED:
            self._shards.clear()
            self._subscribed_at.clear()
        super().end(how, error)
