"""Retries: the overdue leases of one node are watched until their deadlines, and sent as soon as the node can take them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from functools import partial

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import LeaseGroup, Router, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.loss_events import log_given_up
from wheel_lock.engine.renewal.batch import Batch, BatchOwner
from wheel_lock.engine.renewal.checks import EarlyChecks
from wheel_lock.engine.renewal.joint import JointTicks
from wheel_lock.engine.renewal.outages import Outage
from wheel_lock.engine.renewal.overdue import Overdue
from wheel_lock.engine.renewal.tracking import Tracking
from wheel_lock.engine.requests.query import Query
from wheel_lock.engine.requests.replication import ReplicationBarrier
from wheel_lock.engine.state import EngineState
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, LossReason
from wheel_lock.lease import HELD, OVERDUE, Event, Lease, local_deadline
from wheel_lock.net.node import Node
from wheel_lock.observe.health import LATE_S, NodeHealth
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import LONG_TEXT, error_text
from wheel_lock.protocol.scripts import Script
from wheel_lock.protocol.server_errors import NOT_NOW
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.timer import HashedWheelTimer

_LOOK_AGAIN_S = 1.0
_DRAIN_CALLS = 64  # in flight from the overdue set: 35 ms of a server's time, so that due renewals are not delayed
_DRAIN_CALLS_SINGLE_KEY = 1000


class RenewalRetries(BatchOwner):
    """The part of a renewer that deals with unconfirmed renewals. Timer's thread only."""

    table: LeaseTable
    router: Router
    replication: ReplicationBarrier | None = None
    tracking: Tracking | None = None  # of a renewer that watches its locks
    timer: HashedWheelTimer
    _options: ContextOptions

    def _reset(self) -> None:
        if self.replication is not None:
            self.replication.begin_anew()
        self.confirmed_at: float = -math.inf
        self.overdue: Overdue = Overdue()
        self._in_flight = 0
        self._drained_in_flight = 0  # the number of these that are about overdue leases
        self._silent: set[Batch] = set()  # batches that were not answered within their time limit
        self._server_rejecting = False  # the server answers renewals with an error: one probe at a time
        # Scripts that the server has refused since it last executed them, perhaps for lack of a right; the latest last.
        self._refused: dict[Script, None] = {}
        self._resting: set[Lease] = set()  # refused one by one: retried after a pause
        # In single-key mode: True while no call at all can be executed (BUSY, LOADING ...), so one probe at a time is
        # sent; and the answers since the last retry: True for each refusal of this kind.
        self._all_rejecting = False
        self._answers: set[bool] = set()
        self._retry: Alarm | None = None
        self._watch: Alarm | None = None
        self.checks = EarlyChecks(self, self.table)
        self._backoff = Backoff(self._options.backoff_first_s, self._options.backoff_max_s)
        self.outage: Outage = Outage(self.table, self, lambda: self.well)
        self._joint = JointTicks(self, self.timer)

    @property
    def well(self) -> bool:
        """True if the node answers, and no lease is overdue, refused, or in a call that repeats its renewal."""
        return self.node.ready and not (
            self._server_rejecting or self._drained_in_flight or self._resting or self.overdue
        )

    def is_needed(self, node: Node) -> bool:
        return bool(self.table.held) and self.router.owns_names(self)

    def queued(self, node: Node) -> None:
        self.router.queued()

    def trouble(self, node: Node) -> None:
        self.outage.begin()
        self.router.refresh()

    @property
    def nodes(self) -> list[Node]:
        """The node, once for each of its connections."""
        return [self.node] if self.replication is None else [self.node, self.replication.node]

    def health(self, now: float) -> NodeHealth:
        """Return the health of the node at ``now``, in seconds of the timer's clock. From any thread."""
        node, since, trouble = self.node, self.outage.since, None
        ready, connected, error = node.ready, node.connected, node.last_error
        if connected and not ready:
            trouble = "it does not answer"
        elif error is not None and (node.unreachable or self.is_needed(node)):
            trouble = f"not connected: {error_text(error, LONG_TEXT)}"
        elif since is not None and now - since > LATE_S and self.table.held:
            trouble = f"it has not confirmed all renewals for {now - since:.1f} s"
        age_s = None if self.confirmed_at == -math.inf else max(now - self.confirmed_at, 0.0)
        return NodeHealth(node.connector.describe(), ready, len(self.overdue), age_s, trouble)

    @property
    def idle(self) -> bool:
        """True if there is no connection, no call in flight and no overdue lease."""
        return not (self.overdue or self._in_flight or any(node.busy or node.connected for node in self.nodes))

    def restart(self) -> None:
        """Cancel the alarms and reset everything that is in flight, after the death of the thread."""
        self.timer.cancel(self._retry)
        self.timer.cancel(self._watch)
        self._reset()

    @property
    def above(self) -> EngineState:
        return self.table.state

    def crashed(self, error: Exception) -> None:
        """End all leases of this node after an exception in the library's own code; nothing else is in doubt."""
        leases = [lease for lease in self.table.held if group_of(lease).renewer is self]
        log_given_up(len(leases), error)
        self.table.mark_lost(leases, LossReason.INTERNAL_ERROR)
        for node in self.nodes:
            node.restart(error)
        self.restart()

    def watch_overdue(self, leases: Sequence[Lease]) -> None:
        """Watch ``leases`` until their deadlines; HELD ones become OVERDUE."""
        for lease in leases:
            if lease.state is HELD:
                lease.transition(Event.OUTCOME_UNKNOWN)
        self.overdue.add(leases)
        counters = self.table.state.counters
        counters.overdue_most = max(counters.overdue_most, len(self.overdue))
        self._set_watch()

    def _set_watch(self) -> None:
        first = self.overdue.first_deadline
        if first is None:
            return
        # A tick early: a loss is reported by the deadline.
        tick = max(self.timer.scale.floor(first) - 1, self.timer.wheel.now + 1)
        if self._watch is None or self._watch.tick > tick:
            self.timer.cancel(self._watch)
            self._watch = self.timer.call_at(self.timer.scale.seconds(tick), self._report_lapsed, self)

    def _report_lapsed(self, now: float) -> None:
        self._watch = None
        self.table.mark_lost(self.overdue.pop_until(self.timer.scale.seconds(self.timer.wheel.now + 2)))
        self._set_watch()

    def untrack(self, lease: Lease) -> None:
        """Remove a lease from the wheel and from the overdue set. O(1), O(log n) if it is overdue."""
        if not self.timer.wheel.cancel(lease):
            self._resting.discard(lease)
            if self.overdue:
                self.overdue.discard(lease)

    def drain(self) -> None:
        """Send overdue leases, nearest deadline first, as far as there is room; each reply makes room for more."""
        if not self.node.ready or len(self.overdue) == len(self._resting):
            return
        # After the process was stopped, replies are handled before the alarms of deadlines that have passed.
        self.table.mark_lost(self.overdue.pop_until(self.timer.clock.now()))
        calls = self._room
        if calls <= 0:
            return
        # A refusal may concern the node, or one lock type, for which the user lacks a right. Calls of other scripts find
        # out which, and do not wait for the refused ones.
        sent = self._send_some(calls, besides=self._refused)
        if self._retry is None:
            for script in tuple(self._refused):
                if not (self._server_rejecting and sent):
                    sent += self._send_some(1, of=script)
            if self._refused and not self._server_rejecting:
                self._retry_later()

    def _send_some(self, calls: int, *, of: Script | None = None, besides: Container[Script] = ()) -> int:
        """Send overdue leases, of one script or besides some, in at most ``calls`` calls; return the number of calls."""
        size, sent = self.node.batch_size, 0
        # All leases taken may have ended owners; no reply would come for them, so the next ones are taken.
        while not sent and (taken := self.overdue.take(calls * size, self._is_due, of=of, besides=besides)):
            by_group: dict[LeaseGroup, list[Lease]] = {}
            ended = [lease for lease in taken if lease.owner.ended]
            if self.timer.goes_on:
                self.table.abandon_later(ended)  # and renewed meanwhile, as due leases are
            else:
                self.table.mark_lost(ended, LossReason.ABANDONED)
            for lease in taken:
                if lease.state is OVERDUE:
                    by_group.setdefault(group_of(lease), []).append(lease)
            for group, leases in by_group.items():
                for start in range(0, len(leases), size):
                    batch = leases[start : start + size]
                    if sent < calls:
                        sent += 1
                        self.send(group, batch, drained=True)
                    else:
                        self.overdue.add(batch)  # many small groups: the remaining ones wait for replies
        return sent

    @property
    def _room(self) -> int:
        """The number of calls about overdue leases that may be sent now."""
        if self._server_rejecting or self._all_rejecting:
            return 0 if self._in_flight or self._retry is not None else 1
        most = _DRAIN_CALLS_SINGLE_KEY if self.node.single_key_mode else _DRAIN_CALLS
        # Due renewals in flight do not count here: with a long round trip there may always be more of them.
        return min(most - self._drained_in_flight, self._options.max_calls_in_flight - self._in_flight)

    def _is_due(self, lease: Lease) -> bool:
        return lease.state is OVERDUE and lease not in self._resting

    def _defer(self, leases: Iterable[Lease]) -> None:
        """Retry OVERDUE leases after a pause."""
        self._resting.update(leases)
        self._retry_later()

    def _retry_later(self) -> None:
        if self._retry is None:
            # A tick more, because an alarm's time is rounded down.
            pause_s = self._backoff.pause() + self.timer.scale.tick_s
            self._retry = self.timer.call_at(self.timer.now + pause_s, self._retry_now, self)

    def note_answer(self, *, not_now: bool) -> None:
        """Record in single-key mode whether a reply said that the server can execute nothing now (BUSY, LOADING ...)."""
        if not self.node.single_key_mode:
            return
        self._answers.add(not_now)
        if self._all_rejecting and not not_now:
            self._all_rejecting = False
            self._resting.clear()
            self.drain()

    def _retry_now(self, now: float) -> None:
        self._retry = None
        if self._answers:
            # A server that answers some calls only is a proxy, and the servers behind it do not depend on each other.
            self._all_rejecting = self._answers == {True}
            self._answers.clear()
        # First the others: refused leases may have the nearest deadlines, and would be the only ones that are ever sent.
        self.drain()
        if self._room > 0:
            self._resting.clear()
            self.drain()
        elif self._resting:
            self._retry_later()

    def ready(self, node: Node, *, new: bool) -> None:
        if node is not self.node:
            return  # the connection for acquires
        if new:
            self.checks.verify(self.table.held)
        self.router.ready()
        self._server_rejecting = self._all_rejecting = False
        self._answers.clear()
        self._refused.clear()
        self._resting.clear()
        self.drain()
        self.outage.look()
        self.checks.go_on()

    def doubt(self, leases: Iterable[Lease] | None) -> None:
        if leases is None:
            self.checks.doubt_all()
        else:
            self.checks.doubt(leases)

    def check(self, leases: Iterable[Lease], *, register: bool) -> int:
        wheel, size, calls = self.timer.wheel, self.node.batch_size, 0
        by_group: dict[LeaseGroup, list[Lease]] = {}
        for lease in leases:
            if self.needs_none(lease) or (lease.limits is not None and lease.limits.max_renewals is not None):
                calls += 1
                self.look_at(lease, early=True)
                continue
            due = lease.tick
            if wheel.cancel(lease):
                # One interval later is its former place on the wheel.
                group = group_of(lease)
                lease.tick = min(due - group.interval_ticks, wheel.now)
                by_group.setdefault(group, []).append(lease)
        for group, some in by_group.items():
            for start in range(0, len(some), size):
                calls += 1
                self.send(group, some[start : start + size], early=True)
        return calls

    @property
    def takes_more(self) -> bool:
        """True if the node answers, does not refuse renewals, and has room for another call."""
        return self.node.ready and not self._server_rejecting and self._in_flight < self._options.max_calls_in_flight

    def needs_none(self, lease: Lease) -> bool:
        """Return True if a renewal now is pointless: the lease is at its limit, or extended beyond one timeout."""
        return lease.at_limit or lease.deadline > local_deadline(self.timer.now, group_of(lease).timeout_s)

    def look_at(self, lease: Lease, *, early: bool = False) -> None:
        """Query whether the server knows a HELD lease that needs no renewal now, and mark it lost if not.

        A query without an answer proves nothing and is repeated after a pause; an early check ends with the first.
        """
        lock_type, checks = group_of(lease).lock_type, self.checks

        def looked() -> None:
            if early:
                checks.answered()
            if lease.state is not HELD:
                return
            error = future.error
            not_now = isinstance(error, LockServerError) and error.code in NOT_NOW
            if not_now or isinstance(error, (LockUnavailable, LockTimeout)):
                self.timer.call_at(self.timer.now + _LOOK_AGAIN_S, look_again, self)
            elif error is None and not future.result():
                self.table.mark_lost([lease], LossReason.KEY_GONE)

        def look_again(now: float) -> None:
            if lease.state is HELD and not self.table.state.closed:
                group_of(lease).renewer.look_at(lease)

        future = Future[bool](looked)
        read = partial(lock_type.parse_owned, lease=lease)
        Query(self.table, lease.name, lease.key, lock_type.owned(lease), read, future).start()

    def server_is_well(self) -> None:
        if self._server_rejecting:
            self.ready(self.node, new=False)
        if self.outage.since is not None:
            self.outage.look()
