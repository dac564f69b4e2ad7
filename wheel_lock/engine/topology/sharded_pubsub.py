"""Wake-ups in a cluster: by sharded pub/sub where the master has it, so that a message goes to one shard and not to all.

Each master that has it gets a connection for listening of its own. The channels of the others are heard on one more, for
what one node publishes in the old way all nodes pass on. When a slot moves its channels move along.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.net.capabilities import SHARDED
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.net.connector import Server
from wheel_lock.net.pubsub import Listener, PubSub
from wheel_lock.runtime.failures import guarded


class ClusterPubSub(PubSub):
    """Subscriptions to the wake-up channels of a whole cluster. Itself it hears what is published in the old way."""

    def __init__(self, router: SingleRouter, connector: ClusterConnector) -> None:
        state = router.leases.state
        super().__init__(state.timer, connector.listener(), state.options, state.launch, state)
        self._router = router
        self._connector = connector
        self._shards: dict[Renewer, PubSub] = {}
        self._heard_by: dict[tuple[bytes, Listener], PubSub] = {}

    @property
    def busy(self) -> bool:
        """Whether one of them is."""
        return super().busy or any(shard.busy for shard in self._shards.values())

    def _proper(self, channel: bytes) -> PubSub | None:
        """Who is to listen to a channel; None for this one itself."""
        renewer = self._router.shard_of(channel)
        server = next((node.server for node in renewer.nodes if node.capability == SHARDED), None)
        if server is None:
            return None
        shard = self._shards.get(renewer)
        if shard is None:
            router = self._router
            shard = self._shards[renewer] = router.listen_to(self._connector.to(server).listener(), router.refresh)
        return shard

    def listen(self, channel: bytes, listener: Listener) -> None:
        """Subscribe to ``channel`` where it lives."""
        shard = self._proper(channel)
        self._heard_by[channel, listener] = shard or self
        if shard is None:
            super().listen(channel, listener)
        else:
            shard.listen(channel, listener)

    def ignore(self, channel: bytes, listener: Listener) -> None:
        """Tell ``listener`` of ``channel`` no more."""
        where = self._heard_by.pop((channel, listener), self)
        if where is self:
            super().ignore(channel, listener)
        else:
            where.ignore(channel, listener)

    def rearrange(self) -> None:
        """Listen to each channel where it lives by now."""
        for (channel, listener), where in list(self._heard_by.items()):
            if (self._proper(channel) or self) is not where:
                self.ignore(channel, listener)
                guarded(listener, listener.on_subscribed, False)
                self.listen(channel, listener)
        for renewer, shard in list(self._shards.items()):
            if not shard.needed and not self._router.owns_names(renewer):
                shard.retire()
                del self._shards[renewer]

    # -- the fates of all of them ------------------------------------------------------------------------------------

    def leave_for(self, masters: Collection[Server], error: Exception) -> None:
        """Nothing: that is for a master that Sentinels name."""

    def close(self, error: Exception) -> None:
        """Hang up for good."""
        self._end(lambda shard: shard.close(error))
        super().close(error)

    def retire(self) -> None:
        """Hang up until somebody listens again."""
        for shard in self._shards.values():
            shard.retire()
        super().retire()

    def restart(self, error: Exception) -> None:
        """After the death of the thread: begin anew."""
        self._end(lambda shard: shard.restart(error))
        super().restart(error)

    def after_fork_in_child(self) -> None:
        """In a forked child: nobody listens."""
        self._end(lambda shard: shard.after_fork_in_child())
        super().after_fork_in_child()

    def _end(self, how: Callable[[PubSub], object]) -> None:
        for shard in self._shards.values():
            how(shard)
        self._shards.clear()
        self._heard_by.clear()
