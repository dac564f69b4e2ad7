"""A cluster: one node and one renewer for each master, and the map of hash slots that says which lease lives where.

The map is a guess that the nodes correct. A call about one lease declares its keys, so a node that does not own them names
the owner (MOVED), or the node that serves them for the moment (ASK). A call about many leases declares none and works on
those that the node owns; an entry that it does not own fails alone, and is sent again alone. Each contradiction is a reason
to fetch the whole map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from math import inf
from operator import attrgetter

from wheel_lock.engine.interfaces import Elsewhere, Later, LeaseGroup, Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.requests.base import Request
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.lease import EXTENDING, HELD, OVERDUE, Lease, State
from wheel_lock.net.capabilities import SHARDED
from wheel_lock.net.cluster import MOST_NODES, ClusterConnector, SlotRange
from wheel_lock.net.connection import NodeRequest
from wheel_lock.net.connector import NothingListens, Server, as_server, sanitize
from wheel_lock.net.node import Node
from wheel_lock.net.pubsub import Listener, PubSub
from wheel_lock.protocol.keys import SLOTS, hash_slot
from wheel_lock.protocol.resp import MalformedReply
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.ends import End, end_all
from wheel_lock.runtime.failures import guarded

_RETRIED = ("TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", NOT_LOCAL, "READONLY")  # the last one of a demoted master
_FIRST_MAP_S = 1.0  # for so long bulk work waits for the first map
_TICKS_EACH = 2
_CALM_S = 5.0  # without a fetch of the map, after which the backoff begins anew
_GONE_S = 60.0  # without slots, after which a node is forgotten
_PER_TURN = 1000  # leases that move to another node: some 10 ms
_PAUSE_S = 0.05  # before a call that a node could not carry out is sent again


class ClusterRouter(SingleRouter):
    """The router of a cluster."""

    keeps_groups: bool = False
    shards: list[Renewer]
    wakeups: ClusterPubSub
    known: bool = False  # until a node has sent its slot map

    def __init__(self, leases: LeaseTable, connector: ClusterConnector) -> None:
        self._connector = connector
        super().__init__(leases, connector.to(connector.servers[0]))
        self.only_renewer: Renewer | None = None
        self._state = leases.state
        self._by_server: dict[Server, Renewer] = {connector.servers[0]: self.renewer}
        self._owners: list[Renewer] = [self.renewer] * SLOTS
        self._masters = {self.renewer}
        self._moved_at: dict[int, float] = {}  # when a node has last corrected the map, by slot
        self._corrected = False  # the map has changed since overdue leases were last moved
        self._reset()

    def _new_wakeups(self) -> ClusterPubSub:
        return ClusterPubSub(self, self._connector)

    def end(self, how: End, error: Exception) -> None:
        super().end(how, error)
        if how is not End.FORKED and self._state.closed:
            self.timer.cancel(self._look)  # else a retired context may need the map for its last clean-ups
        waiting = () if how is End.FORKED else self._for_known
        self._reset()
        for call in waiting:
            call()

    def _reset(self) -> None:
        self._asking = False
        self._asked_at = -inf
        self._look: Alarm | None = None
        self._for_known: list[Callable[[], object]] = []
        self._idle_since: dict[Renewer, float] = {}  # nodes without slots
        self._receiving: list[Renewer] = []  # nodes to which leases have been moved in this turn
        self._backoff = Backoff(self._state.options.backoff_first_s, self._state.options.backoff_max_s)

    def shard_of(self, key: bytes) -> Renewer:
        return self._owners[hash_slot(key)]

    def owns_names(self, shard: Shard) -> bool:
        return shard in self._masters

    def group_of(self, group: LeaseGroup, key: bytes) -> LeaseGroup:
        return self.shard_of(key).like(group)

    def _at(self, server: Server) -> Renewer:
        renewer = self._by_server.get(server)
        if renewer is None:
            renewer = self.new_renewer(self._connector.to(server))
            self._by_server[server] = renewer
            self._connector.servers = [server, *self._connector.servers]  # a node named just now is alive
            self.shards = [*self.shards, renewer]  # others may be iterating over it
        return renewer

    # -- replies of nodes --------------------------------------------------------------------------------------------

    def ready(self) -> None:
        self.wakeups.rearrange()
        self._ensure_slot_map()

    def queued(self) -> None:
        self._ensure_slot_map()

    def _ensure_slot_map(self) -> None:
        if not self.known:
            self.refresh()

    def redirection(self, request: NodeRequest, error: ServerError) -> Elsewhere | Later | None:
        assert isinstance(request, Request)
        code = error.code
        if code in ("MOVED", "ASK"):
            slot, server = self._read_redirection(error, request)
            if server is None or (server not in self._by_server and len(self._by_server) >= 2 * MOST_NODES):
                self.refresh()
                return Later(_PAUSE_S)
            target = self._at(server)
            return self._moved(request, slot, target) if code == "MOVED" else self._asked(request, target)
        if code in _RETRIED:
            request.node.refusal = error
            self.refresh()
            # With slot migration in progress, a script may have deleted the key: its next command for it is refused.
            return Later(_PAUSE_S, error.in_script and code != "READONLY")
        return None

    def _moved(self, request: Request, slot: int, target: Renewer) -> Elsewhere | Later:
        """According to another node, ``target`` is the owner of the slot."""
        self.refresh()
        now = self.timer.now
        changes = self._owners[slot] is not target
        # Nodes with conflicting slot maps redirect to and fro, and so does a node that names itself: pause in between.
        if changes:
            to_and_fro = now - self._moved_at.get(slot, -inf) < _PAUSE_S
        else:
            to_and_fro = request.sent_asking or request.node in target.nodes
        if to_and_fro:
            return Later(_PAUSE_S)
        if changes:
            self._corrected = True
            self._moved_at[slot] = now
            self._owners[slot] = target
            self._masters.add(target)
        return Elsewhere(target)

    def _asked(self, request: Request, target: Renewer) -> Elsewhere | Later:
        """While the slot migrates, ``target`` serves the key. If that redirects, too, the owner is asked after a pause."""
        node = request.node_on(target)
        if request.wanted and (request.sent_asking or not node.ready):
            node.connect()
            return Later(_PAUSE_S)
        return Elsewhere(target, asking=True)

    def _read_redirection(self, error: ServerError, request: Request) -> tuple[int, Server | None]:
        slot, host, port = error.redirection or (SLOTS, "", "")
        if slot >= SLOTS:
            raise MalformedReply(f"{str(error)[:40]!r} is no redirection")
        if not request.declared or (request.key is not None and slot != hash_slot(request.key)):
            raise MalformedReply(f"a redirection of slot {slot}, which the call is not about")
        server = as_server(host, port, request.node.server)
        if server is None:
            raise MalformedReply(f"{str(error)[:40]!r} is no redirection to where a node can be")
        return slot, self._connector.known_place(server[0] or "", server[1])

    def home_of(self, request: NodeRequest) -> Shard | None:
        assert isinstance(request, Request)
        home = None if request.key is None else self.shard_of(request.key)
        return None if home is None or request.node in home.nodes else home

    def refused(self, node: Node, errors: Iterable[ServerError]) -> None:
        self.refresh()

    def rehome(self, leases: Iterable[Lease]) -> list[Lease]:
        return [lease for lease in leases if not self._rehome(lease)]

    def when_known(self, begin: Callable[[], object]) -> None:
        if not self._for_known:
            self.timer.call_at(self.timer.now + _FIRST_MAP_S, lambda now: self._begin_waiting(), self._state)
        self._for_known.append(begin)
        self._ensure_slot_map()

    def _begin_waiting(self) -> None:
        waiting, self._for_known = self._for_known, []
        for begin in waiting:
            begin()

    def assign(self, lease: Lease) -> None:
        if lease.state is State.PENDING:
            lease.group = self.group_of(group_of(lease), lease.key)

    def by_shard(self, leases: Iterable[Lease]) -> Iterable[tuple[Shard, Iterable[Lease]]]:
        by_shard: dict[Shard, list[Lease]] = {}
        for lease in leases:
            self.assign(lease)
            by_shard.setdefault(group_of(lease).renewer, []).append(lease)
        return by_shard.items()

    def rivals(self, woken: int, own: bool) -> int:
        return 1  # unknown: the number counts the subscribers of one node only

    # -- leases move -------------------------------------------------------------------------------------------------

    def _rehome(self, lease: Lease) -> bool:
        """Move a lease to its node; return False if it is there, or while a call about it is in flight."""
        home = self.shard_of(lease.key)
        if home is group_of(lease).renewer:
            return False
        group_of(lease).renewer.take_out(lease)
        if lease.state not in (HELD, OVERDUE, EXTENDING):
            return False
        self.migrate(lease, home)
        return True

    def migrate(self, lease: Lease, shard: Shard) -> None:
        assert isinstance(shard, Renewer)
        home, group = shard, group_of(lease)
        if group.renewer is home:
            return
        group.renewer.take_out(lease)
        watched = lease.state in (HELD, OVERDUE, EXTENDING)
        if watched:
            group.renewer.untrack(lease)
        lease.group = home.like(group)
        if lease.state is HELD and home.needs_none(lease):
            group_of(lease).schedule(lease, self.timer.now)
            home.doubt([lease])
        elif watched:
            home.watch_overdue([lease])
            if home not in self._receiving:
                if not self._receiving:
                    self.timer.post(self._receive, self._state)  # once for all leases that move in this turn
                self._receiving.append(home)

    def _receive(self) -> None:
        """Renew leases that have been moved."""
        receiving, self._receiving = self._receiving, []
        for home in receiving:
            home.node.connect()
            home.drain()

    # -- the slot map ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        if self._asking or self._look is not None or self._state.closed:
            return
        timer = self.timer
        if timer.now - self._asked_at > _CALM_S:
            self._backoff.reset()
        self._look = timer.call_at(timer.now + self._backoff.pause(), self._ask_now, self._state)

    def _ask_now(self, now: float) -> None:
        self._look = None
        self._asking = True
        self._asked_at = now
        try:
            self._state.launch(self._ask)
        except RuntimeError:  # no thread can be started
            self._asking = False
            self.refresh()

    def _ask(self) -> None:
        """On a helper thread."""
        life = self._backoff
        found: Sequence[SlotRange] = ()
        try:
            found = self._connector.ask(self._state.options.connect_timeout_s)
        except NothingListens as error:
            refusal = error
            sanitize(refusal)
            self._state.post_if_open(lambda: self._refused(refusal, life))
        self._state.post_if_open(lambda: self._answered(found, life))

    def _refused(self, refusal: NothingListens, life: Backoff) -> None:
        if life is self._backoff:
            for node in self.nodes:
                node.refuse_impatient(refusal)

    def _answered(self, found: Sequence[SlotRange], life: Backoff) -> None:
        if life is not self._backoff:
            return
        self._asking = False
        if not found:
            if self.leases.held or self.busy:
                self.refresh()
            return
        self.known = True
        owners = list(self._owners)
        for first, last, server in found:
            owners[first : last + 1] = [self._at(server)] * (last + 1 - first)
        if owners != self._owners:
            self._corrected = True
            self._backoff.reset()
        left, self._owners = self._masters, owners
        self._masters = set(owners)
        left = left - self._masters
        self._connector.servers = [server for server, renewer in self._by_server.items() if renewer in self._masters]
        self._leave(left)
        if self.leases.keeping is not None:
            masters = {self._by_server[server].node: server for server in self._connector.servers}
            self.leases.keeping.use({node: self._connector.names_of(server) for node, server in masters.items()})
        self._begin_waiting()
        for renewer in self.shards:
            self._send_waiting(renewer)
        self._forget_gone()
        self._share_ticks()
        self.wakeups.rearrange()
        corrected, self._corrected = self._corrected, False
        for renewer in self.shards:
            renewer.flow.drop_misrouted()
            if corrected:
                self._rehome_all(renewer.overdue.snapshot(), 0)
        if any(node.in_trouble for renewer in self._masters for node in renewer.nodes):
            self.refresh()  # until another node has taken over, or this one has recovered

    def _leave(self, left: Set[Renewer]) -> None:
        """Move the leases of nodes that have lost all slots, and close the connections to these nodes."""
        if left:
            leases = [lease for lease in self.leases.held if group_of(lease).renewer in left]
            leases.sort(key=attrgetter("deadline"))
            self._rehome_all(leases, 0)
        for renewer in left:
            for node in renewer.nodes:
                node.drop(ConnectionAbortedError("this node owns no hash slots any more"))

    def _rehome_all(self, leases: Sequence[Lease], start: int) -> None:
        """Move leases to their nodes, a part in each turn, so that other work does not wait for many."""
        for lease in leases[start : start + _PER_TURN]:
            self._rehome(lease)
        if start + _PER_TURN < len(leases):
            self.timer.post(lambda: self._rehome_all(leases, start + _PER_TURN), self._state)

    def _forget_gone(self) -> None:
        """Forget idle nodes without slots: after ``_GONE_S`` seconds, or at once if more than ``MOST_NODES`` are known."""
        now = self.timer.now
        long_s = _GONE_S if len(self._by_server) <= MOST_NODES else -1.0
        gone: set[Renewer] = set()
        for renewer in self.shards:
            if renewer in self._masters or not renewer.idle:
                self._idle_since.pop(renewer, None)
            elif now - self._idle_since.setdefault(renewer, now) > long_s and renewer is not self.renewer:
                del self._idle_since[renewer]
                gone.add(renewer)
        if gone:
            self.shards = [renewer for renewer in self.shards if renewer not in gone]
            self._by_server = {server: other for server, other in self._by_server.items() if other not in gone}

    def _send_waiting(self, renewer: Renewer) -> None:
        """Send the requests that wait for a connection to a node, each where its key lives by now."""
        for node in renewer.nodes:
            for request in node.take_waiting():
                if isinstance(request, Request) and request.key is not None:
                    request.send_home()
                else:
                    node.send(request)

    def _share_ticks(self) -> None:
        """Give each master ticks of its own for spread renewals, so that each tick has work for one of them only."""
        masters = [renewer for renewer in self.shards if renewer in self._masters]
        for number, renewer in enumerate(masters):
            renewer.every_ticks = _TICKS_EACH * len(masters)
            renewer.tick_share = _TICKS_EACH * number


class ClusterPubSub(PubSub):
    """The subscriptions to the wake-up channels of a whole cluster.

    They use sharded pub/sub where the master has it, so that a message goes to one shard and not to all: each such master
    gets a connection for its channels. The connection of this object itself serves the channels of all other masters,
    because all nodes pass on classic messages. When a slot moves, its channels move along.
    """

    def __init__(self, router: ClusterRouter, connector: ClusterConnector) -> None:
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

    def end(self, how: End, error: Exception) -> None:
        end_all(self._shards.values(), how, error)
        if how is not End.RETIRED:
            self._shards.clear()
            self._subscribed_at.clear()
        super().end(how, error)
