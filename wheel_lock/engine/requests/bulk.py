"""Bulk work, cut into batches of one script call each.

A few batches are under way at a time at each node, so that a million locks neither fill the memory nor keep renewals
waiting, and a node that does not answer holds nobody up but itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from wheel_lock.engine.interfaces import Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest, node_of
from wheel_lock.engine.requests.permissions import Look
from wheel_lock.errors import WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.net.connection import NodeRequest
from wheel_lock.net.node import Node
from wheel_lock.protocol.resp import Reply, exceptions
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError, code_of

BATCHES_IN_FLIGHT = 8  # enough to keep the server busy, few enough to let renewals in between


class NodeBacklog:
    """What is still to be done at one node.

    Attributes:
        node: The node.
        leases: All that has been put in.
        next: How many of them have been taken out.
        under_way: How many batches of it are.
        stopped: Nothing more is taken out.
    """

    __slots__ = ("leases", "next", "node", "stopped", "under_way")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.leases: list[Lease] = []
        self.next = 0
        self.under_way = 0
        self.stopped = False

    @property
    def goes_on(self) -> bool:
        """Whether there is something to take out."""
        return self.next < len(self.leases) and not self.stopped

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be under way: as many leases as usual, where each has a call of its own."""
        return self.under_way < BATCHES_IN_FLIGHT * self.node.calls_for_a_batch

    def take(self) -> list[Lease]:
        """Take out what can share a call."""
        span = self.leases[self.next : self.next + self.node.batch_size]
        _, of_one_group = next(itertools.groupby(span, key=group_of))
        taken = list(of_one_group)
        self.next += len(taken)
        return taken

    def take_rest(self) -> list[Lease]:
        """Take out everything."""
        rest = self.leases[self.next :]
        self.next = len(self.leases)
        return rest


class BulkBatch(CallerRequest):
    """A part of a bulk operation: one script call.

    Attributes:
        leases: What it is about.
        backlog: Where it comes from.
    """

    __slots__ = ("_bulk", "backlog", "leases")

    leases: Sequence[Lease]

    def __init__(self, bulk: BulkOperation, leases: Sequence[Lease], backlog: NodeBacklog) -> None:
        node = bulk.node_on(group_of(leases[0]).renewer)
        super().__init__(bulk.table, node, leases[0].name, bulk.table.state.options.response_timeout_s)
        self._bulk = bulk
        self.leases = leases
        self.backlog = backlog

    def node_on(self, shard: Shard) -> Node:
        return self._bulk.node_on(shard)

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        return Look(self) if missing_rights & self.needs else self

    def without(self, misrouted: Sequence[Lease], failed: dict[int, int | ServerError]) -> dict[int, int | ServerError]:
        """Let go of ``strays``; return the other exceptions by where their leases are now."""
        statuses, gone = {self.leases[index]: status for index, status in failed.items()}, set(misrouted)
        self.leases = [lease for lease in self.leases if lease not in gone]
        return {index: statuses[lease] for index, lease in enumerate(self.leases) if lease in statuses}

    def call(self) -> Command:
        return self._bulk.call(self.leases)

    @property
    def needs(self) -> frozenset[str]:
        return self._bulk.needs(self.leases)

    def value_reply(self, reply: Reply) -> None:
        failed = dict(exceptions(reply, len(self.leases)))
        if self.finished:
            return
        # A replica, or a node of a cluster that is down, has carried out nothing of it, or not all that it is to do.
        codes = ("READONLY", "CLUSTERDOWN") if self.repeatable else ("READONLY",)
        refused = next(
            (error for error in failed.values() if isinstance(error, ServerError) and error.code in codes), None
        )
        if refused is None or not self.goes_elsewhere(refused):
            self.finish()
            self._bulk.batch_done(self, failed)

    @property
    def may_wait(self) -> bool:
        return self._bulk.may_wait and not self.sent_asking

    @property
    def awaited(self) -> bool:
        return self._bulk.releases or not self.finished

    @property
    def repeatable(self) -> bool:
        # Else, of a release, the keys may be namesakes' by the next try.
        return group_of(self.leases[0]).lock_type.unique_tokens

    def on_single_key_mode(self) -> None:
        self.finish()
        self._bulk.batch_refused(self)

    def failed(self, error: WheelLockError) -> None:
        self._bulk.batch_failed(self, error)


class BulkOperation:
    """Work on many leases, in batches, a few of them under way at a time at each node."""

    may_wait = False  # whether batches wait for room in a full connection
    releases = False  # whether batches count as awaited after their call has ended: other owners wait for the locks

    def __init__(self, table: LeaseTable, leases: Iterable[Lease]) -> None:
        self.table = table
        self._backlogs: dict[Node, NodeBacklog] = {}
        self._early: list[Lease] = []  # asked for before it is known which node they live on
        self._sealed = True  # there are no more to come
        self._under_way: set[BulkBatch] = set()
        self._stopped = False
        self.put(leases)

    def put(self, leases: Iterable[Lease]) -> None:
        """Have something done about ``leases``, too."""
        router = self.table.router
        if router.stable:
            self._backlog_of(router.shards[0].node).leases.extend(leases)
        elif router.known or self.table.state.closed:
            self._assign(leases)
        else:
            self._early.extend(leases)
            router.when_known(self._assign_early)

    def _assign(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self.table.router.assign(lease)
            self._backlog_of(node_of(lease)).leases.append(lease)

    def _assign_early(self) -> None:
        """The slot map has been received; or it has not, and then the nodes correct the guess call by call."""
        early, self._early = self._early, []
        self._assign(early)
        if early:
            self.pump()

    def _backlog_of(self, node: Node) -> NodeBacklog:
        backlog = self._backlogs.get(node)
        if backlog is None:
            backlog = self._backlogs[node] = NodeBacklog(node)
        return backlog

    def pump(self) -> None:
        """Send as many batches as may be under way; finish when there are none left."""
        if self._early and not self._stopped:
            return
        for backlog in self._backlogs.values():
            while not self._stopped and backlog.goes_on and backlog.has_room:
                leases = backlog.take()
                self.begin_batch(leases)
                self._start(leases, backlog)
        if not self._under_way and (self._sealed or self._stopped):
            self.finished()

    def _start(self, leases: Sequence[Lease], backlog: NodeBacklog) -> None:
        batch = BulkBatch(self, leases, backlog)
        backlog.under_way += 1
        self._under_way.add(batch)
        batch.start()

    def _ended(self, batch: BulkBatch) -> None:
        if batch in self._under_way:
            self._under_way.remove(batch)
            batch.backlog.under_way -= 1

    def take_rest(self) -> list[Lease]:
        """Take out what no batch has been made of; there will be none."""
        early, self._early = self._early, []
        return [*early, *[lease for backlog in self._backlogs.values() for lease in backlog.take_rest()]]

    def node_on(self, shard: Shard) -> Node:
        """Return the connection on which a batch goes to a node."""
        return shard.node

    def begin_batch(self, leases: Sequence[Lease]) -> None:
        """Do what has to be done before a batch is sent."""

    def call(self, leases: Sequence[Lease]) -> Command:
        """Return the call about one batch."""
        raise NotImplementedError

    def needs(self, leases: Sequence[Lease]) -> frozenset[str]:
        """The commands without which a batch makes no sense; see rights.py."""
        return frozenset()

    def batch_done(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        """Take the outcome of one batch and go on."""
        self._ended(batch)
        misrouted = [batch.leases[index] for index, status in failed.items() if code_of(status) == NOT_LOCAL]
        if misrouted:
            failed = {index: status for index, status in failed.items() if code_of(status) != NOT_LOCAL}
            failed = batch.without(misrouted, failed)
        if batch.leases:
            self.take(batch, failed)
        for lease in misrouted:
            self._start([lease], batch.backlog)  # alone: then the node says where it lives
        self.pump()

    def batch_refused(self, batch: BulkBatch) -> None:
        """Nothing of it was carried out, because its node wants one lease a call."""
        self._ended(batch)
        for lease in batch.leases:
            self._start([lease], batch.backlog)

    def batch_failed(self, batch: BulkBatch, error: WheelLockError) -> None:
        """One batch has no outcome."""
        self._ended(batch)
        self.miss(batch, error)
        self.pump()

    def take(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        """Take the outcome of one batch."""
        raise NotImplementedError

    def miss(self, batch: BulkBatch, error: WheelLockError) -> None:
        """Take the failure of one batch."""
        raise NotImplementedError

    def finished(self) -> None:
        """Nothing is under way any more, and nothing is left to send."""
        raise NotImplementedError
