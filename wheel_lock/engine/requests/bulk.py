"""Bulk operations, divided into batches of one script call each.

A few batches are in flight at a time at each node, so a million locks neither fill the memory nor delay renewals, and a
node that does not answer delays only its own batches.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from wheel_lock.engine.interfaces import group_of, shared_group
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.errors import WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.net.node import Node
from wheel_lock.protocol.resp import Reply, exceptions
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError, code_of
from wheel_lock.rows import Rows, like


class Stage(enum.IntEnum):
    """The stage of a bulk operation."""

    FILLING = 0  # more leases may be put in
    SEALED = 1  # all have been put in
    STOPPED = 2  # no more batches are sent
    UNDOING = 3  # and what was granted is released


class NodeBacklog:
    """The leases of a bulk operation at one node.

    Attributes:
        leases: All leases.
        rows: Others, of which each is a batch.
        next: The number of ``leases`` that have been taken out.
        in_flight: The number of batches in flight.
        stopped: True if no more batches are to be taken out.
    """

    __slots__ = ("in_flight", "leases", "next", "node", "rows", "stopped")

    def __init__(self, node: Node) -> None:
        self.node: Node = node
        self.leases: list[Lease] = []
        self.rows: deque[Rows] = deque()
        self.next: int = 0
        self.in_flight: int = 0
        self.stopped: bool = False

    def may_send(self, most: int) -> bool:
        """Return whether there are leases to send, and less than ``most`` batches in flight."""
        has_room = self.in_flight < most * self.node.calls_for_a_batch
        return has_room and not self.stopped and (bool(self.rows) or self.next < len(self.leases))

    def take(self) -> Sequence[Lease]:
        """Take out the leases of the next batch: neighbours of one group."""
        while self.rows:
            rows = self.rows.popleft()
            if 1 < len(rows) <= self.node.batch_size:  # one alone is a lease, on the wheel and among the held ones
                return rows
            self.leases.extend(rows)
        span = self.leases[self.next : self.next + self.node.batch_size]
        _, of_one_group = next(itertools.groupby(span, key=group_of))
        taken = list(of_one_group)
        self.next += len(taken)
        return taken

    def take_remaining(self) -> Iterable[Lease]:
        """Take out all leases that no batch has been made of. Those of rows are made when the result gets to them."""
        remaining, rows = self.leases[self.next :], self.rows
        self.next = len(self.leases)
        self.rows = deque()
        return itertools.chain(remaining, itertools.chain.from_iterable(rows))


class BulkBatch(CallerRequest):
    """One script call of a bulk operation: the release of its leases, unless it is of a subclass."""

    __slots__ = ("_bulk", "backlog", "leases")

    leases: Sequence[Lease]

    def __init__(self, bulk: BulkOperation, leases: Sequence[Lease], backlog: NodeBacklog) -> None:
        super().__init__(bulk.table, self.node_on(shared_group(leases).renewer), like(leases).name)
        self._bulk = bulk
        self.leases = leases
        self.backlog: NodeBacklog = backlog

    def encode(self, capability: int) -> bytes:
        if not self.repeatable:
            now = self.timer.clock.now()
            # The key of one that has lapsed may be a namesake's by now.
            self._bulk.lapsed([lease for lease in self.leases if now >= lease.deadline])
            left = [lease for lease in self.leases if now < lease.deadline]
            if not left:
                self.finish()
                # Not here: the caller of start() may be about to start other batches, which belong to the outcome.
                self.timer.post(partial(self._bulk.batch_dropped, self), self)
                return b""
            self.leases = left
        return super().encode(capability)

    def call(self) -> Command:
        return group_of(self.leases[0]).lock_type.release_many(self.leases)

    def value_reply(self, reply: Reply) -> None:
        failed = dict(exceptions(reply, len(self.leases)))
        if self.finished:
            return
        # A replica has executed nothing of it, and a node of a cluster that is down perhaps a part.
        codes = ("READONLY", "CLUSTERDOWN") if self.repeatable else ("READONLY",)
        errors = [error for error in failed.values() if isinstance(error, ServerError) and error.code in codes]
        if not errors or not self.redirect(errors[0]):
            self.finish()
            self._bulk.batch_done(self, failed)

    @property
    def awaited(self) -> bool:
        return self._bulk.releases or not self.finished

    @property
    def repeatable(self) -> bool:
        # A namesake may have acquired a lock with a caller token by the next try.
        return shared_group(self.leases).lock_type.unique_tokens

    def repeat_declared(self) -> None:
        self.finish()
        self._bulk.send_alone(self)

    def failed(self, error: WheelLockError) -> None:
        self._bulk.batch_failed(self, error)


class BulkOperation:
    """An operation on many leases, in batches, a few of them in flight at a time at each node.

    Attributes:
        stage: Its stage.
        most_in_flight: The most batches that may be in flight at a node.
    """

    most_in_flight: int = 4  # enough to keep the server busy, few enough to let renewals in between
    batch_class: type[BulkBatch] = BulkBatch
    releases = False  # batches count as awaited after their call has ended, because other owners wait for the locks

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self._backlogs: dict[Node, NodeBacklog] = {}
        self._early: list[Lease] = []  # put in before a slot map says which node they live on
        self.stage: Stage = Stage.SEALED
        self._in_flight: set[BulkBatch] = set()

    def put(self, leases: Iterable[Lease]) -> None:
        """Add leases."""
        router = self.table.router
        if router.known or self.table.state.closed:
            self._assign(leases)
        else:
            self._early.extend(leases)
            router.when_known(self._assign_early)

    def _assign(self, leases: Iterable[Lease]) -> None:
        for shard, some in self.table.router.by_shard(leases):
            self._backlog_of(shard.node).leases.extend(some)

    def _assign_early(self) -> None:
        """Assign leases to nodes by the slot map; if none has been received, the nodes redirect call by call."""
        early, self._early = self._early, []
        self._assign(early)
        if early:
            self.pump()

    def _backlog_of(self, node: Node) -> NodeBacklog:
        return self._backlogs.setdefault(node, NodeBacklog(node))

    def pump(self) -> None:
        """Send as many batches as may be in flight; finish when none is left."""
        if self._early and self.stage < Stage.STOPPED:
            return
        for backlog in self._backlogs.values():
            while self.stage < Stage.STOPPED and backlog.may_send(self.most_in_flight):
                leases = self.begin_batch(backlog.take())
                if leases:
                    self._start(leases, backlog)
        if not self._in_flight and self.stage is not Stage.FILLING:
            self.finished()

    def seal(self) -> None:
        """Declare that all leases have been put in."""
        self.stage = max(self.stage, Stage.SEALED)
        self.pump()

    def stop_sending(self) -> None:
        """Have no more batches sent."""
        self.stage = max(self.stage, Stage.STOPPED)

    def _start(self, leases: Sequence[Lease], backlog: NodeBacklog) -> None:
        batch = self.batch_class(self, leases, backlog)
        backlog.in_flight += 1
        self._in_flight.add(batch)
        batch.start()

    def _ended(self, batch: BulkBatch) -> None:
        if batch in self._in_flight:
            self._in_flight.remove(batch)
            batch.backlog.in_flight -= 1

    def take_remaining(self) -> Iterable[Lease]:
        """Take out all leases that no batch has been made of. Those of rows are made when the result gets to them."""
        early, self._early = self._early, []
        return itertools.chain(early, *[backlog.take_remaining() for backlog in self._backlogs.values()])

    def begin_batch(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Called before a batch is sent; return those of ``leases`` that it is about."""
        return leases

    def lapsed(self, leases: Sequence[Lease]) -> None:
        """Called before each try of a batch with caller tokens, with those that it is not about any more."""

    def batch_done(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        """Handle the outcome of one batch, and go on."""
        self._ended(batch)
        misrouted = [batch.leases[index] for index, status in failed.items() if code_of(status) == NOT_LOCAL]
        if misrouted:
            statuses, elsewhere = {batch.leases[index]: status for index, status in failed.items()}, set(misrouted)
            batch.leases = [lease for lease in batch.leases if lease not in elsewhere]
            failed = {index: statuses[lease] for index, lease in enumerate(batch.leases) if lease in statuses}
        if batch.leases:
            self.take(batch, failed)
        for lease in misrouted:
            self._start([lease], batch.backlog)  # alone, with its keys declared, so the node redirects it
        self.pump()

    def send_alone(self, batch: BulkBatch) -> None:
        """Send each lease of a batch that was not executed in a call of its own."""
        self._ended(batch)
        for lease in batch.leases:
            self._start([lease], batch.backlog)

    def batch_dropped(self, batch: BulkBatch) -> None:
        """Go on without a batch of which there was nothing left to send."""
        self._ended(batch)
        self.pump()

    def batch_failed(self, batch: BulkBatch, error: WheelLockError) -> None:
        """Handle a batch without an outcome, and go on."""
        self._ended(batch)
        self.miss(batch, error)
        self.pump()

    def take(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        """Handle the outcome of one batch: the status of each lease that is an exception, by its index."""
        raise NotImplementedError

    def miss(self, batch: BulkBatch, error: WheelLockError) -> None:
        """Handle a batch without an outcome."""
        raise NotImplementedError

    def finished(self) -> None:
        """Called when no batch is in flight and none is left to send."""
        raise NotImplementedError
