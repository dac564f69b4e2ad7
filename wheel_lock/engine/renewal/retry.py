"""The overdue leases of one node: watched until their deadlines, and sent again as soon as the node can take them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import LeaseGroup, Router, Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.loss_events import log_given_up
from wheel_lock.engine.renewal.batch import Batch
from wheel_lock.engine.renewal.outages import Outage
from wheel_lock.engine.renewal.overdue import Overdue
from wheel_lock.engine.renewal.verification import Verification
from wheel_lock.engine.requests.base import start_query
from wheel_lock.engine.requests.replication import ReplicationBarrier
from wheel_lock.engine.state import EngineState
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, LossReason
from wheel_lock.lease import HELD, OVERDUE, Event, Lease, local_deadline
from wheel_lock.net.node import Node
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.scripts import Script
from wheel_lock.protocol.server_errors import NOT_NOW
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.timer import HashedWheelTimer

_LOOK_AGAIN_S = 1.0
_DRAIN_LEASES = 1000  # where each has a call of its own
_DRAIN_CALLS = 64  # under way from the overdue set: 35 ms of a server's time, so that what is due now is not held up


class RenewalRetries(Shard):
    """What a renewer knows of leases whose renewal is not confirmed. Timer's thread only."""

    table: LeaseTable
    router: Router
    replication: ReplicationBarrier | None = None
    timer: HashedWheelTimer
    _options: ContextOptions

    def _reset(self) -> None:
        if self.replication is not None:
            self.replication.begin_anew()
        self.overdue = Overdue()
        self._in_flight = 0
        self._drained_in_flight = 0  # of these, those that are about overdue leases
        self._silent: set[Batch] = set()  # batches that were not answered when they should have been
        self._server_rejecting = False  # the server answers renewals with an error: one probe at a time
        # What it has refused since it last carried it out, perhaps for a reason of its own; the latest last.
        self._refused: dict[Script, None] = {}
        self._resting: set[Lease] = set()  # renewals that the server refused one by one: not before the next probe
        # Where each lease has a call of its own: whether the server can answer nobody for the moment, so that one probe at
        # a time is enough, and what its answers since the last retry were: True for those that said so.
        self._helpless = False
        self._answers: set[bool] = set()
        self._retry: Alarm | None = None
        self._watch: Alarm | None = None
        self.verification: Verification | None = None
        self._backoff = Backoff(self._options.backoff_first_s, self._options.backoff_max_s)
        self.outage = Outage(self.table, self, lambda: self.well)

    @property
    def well(self) -> bool:
        """Whether the node answers, and nothing is left of what it has not answered, or has refused."""
        return self.node.ready and not (
            self._server_rejecting or self._drained_in_flight or self._resting or self.overdue
        )

    def is_needed(self, node: Node) -> bool:
        """Return whether leases are held, and some may live here."""
        return bool(self.table.held) and self.router.owns_names(self)

    def queued(self, node: Node) -> None:
        """A request waits for a connection: fetch the slot map meanwhile, unless one has been received."""
        self.router.queued()

    def trouble(self, node: Node) -> None:
        """The node has been lost, or is suspected, or could not be connected to."""
        self.outage.begin()
        self.router.refresh()

    @property
    def nodes(self) -> list[Node]:
        """Its node, once for each of its channels."""
        return [self.node] if self.replication is None else [self.node, self.replication.node]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to wait for, and no connection."""
        return not (self.overdue or self._in_flight or any(node.busy or node.connected for node in self.nodes))

    def restart(self) -> None:
        """After the death of the thread: its alarms are gone."""
        self.timer.cancel(self._retry)
        self.timer.cancel(self._watch)
        self._reset()

    @property
    def above(self) -> EngineState:
        """The engine."""
        return self.table.state

    def crashed(self, error: Exception) -> None:
        """End what is kept at this node: a call for it has failed, and nothing else is in doubt."""
        leases = [lease for lease in self.table.held if group_of(lease).renewer is self]
        log_given_up(len(leases), error)
        self.table.mark_lost(leases, LossReason.INTERNAL_ERROR)
        for node in self.nodes:
            node.restart(error)
        self.restart()

    def _send(self, group: LeaseGroup, leases: list[Lease], *, drained: bool = False) -> None:
        raise NotImplementedError

    def watch_overdue(self, leases: Sequence[Lease]) -> None:
        """Watch ``leases`` until their deadlines; HELD ones become OVERDUE."""
        for lease in leases:
            if lease.state is HELD:
                lease.transition(Event.OUTCOME_UNKNOWN)
        self.overdue.add(leases)
        self._set_watch()

    def _set_watch(self) -> None:
        first = self.overdue.first_deadline
        if first is None:
            return
        # A tick early: the loss must be told by the deadline.
        tick = max(self.timer.scale.floor(first) - 1, self.timer.wheel.now + 1)
        if self._watch is None or self._watch.tick > tick:
            self.timer.cancel(self._watch)
            self._watch = self.timer.call_at(self.timer.scale.seconds(tick), self._tell_lapsed, self)

    def _tell_lapsed(self, now: float) -> None:
        self._watch = None
        self.table.mark_lost(self.overdue.pop_until(self.timer.scale.seconds(self.timer.wheel.now + 2)))
        self._set_watch()

    def untrack(self, lease: Lease) -> None:
        """Remove a lease from the wheel and from the overdue set. O(1), O(log n) when it is overdue."""
        if not self.timer.wheel.cancel(lease):
            self._resting.discard(lease)
            if self.overdue:
                self.overdue.discard(lease)

    def drain(self) -> None:
        """Send what is overdue, nearest deadline first, a limited number of calls at a time: each reply makes room."""
        if not self.node.ready or len(self.overdue) == len(self._resting):  # nothing that is not resting
            return
        # A thread that was stopped comes here with replies in its hands, before it has looked at the deadlines.
        now = self.timer.clock.now()
        self.table.mark_lost(self.overdue.pop_until(now))
        calls = self._room
        if calls <= 0:
            return
        # A refusal may concern the node, or one kind of lock: a right of its own is missing. What has not been refused
        # tells which, and does not wait for the rest.
        sent = self._send_some(calls, besides=self._refused)
        if self._retry is None:
            for script in tuple(self._refused):
                if not (self._server_rejecting and sent):
                    sent += self._send_some(1, of=script)
            if self._refused and not self._server_rejecting:
                self._retry_later()

    def _send_some(self, calls: int, *, of: Script | None = None, besides: Container[Script] = ()) -> int:
        """Send what waits, of one script or besides some, in so many calls at most; return how many it were."""
        size, sent = self.node.batch_size, 0
        # Until something is sent: those whose owners have ended may be all that is taken, and no reply would come for them.
        while not sent and (taken := self.overdue.take(calls * size, self._waits, of=of, besides=besides)):
            by_group: dict[LeaseGroup, list[Lease]] = {}
            self.table.mark_lost([lease for lease in taken if lease.owner.ended], LossReason.ABANDONED)
            for lease in taken:
                if lease.state is OVERDUE:
                    by_group.setdefault(group_of(lease), []).append(lease)
            for group, leases in by_group.items():
                for start in range(0, len(leases), size):
                    batch = leases[start : start + size]
                    if sent < calls:
                        sent += 1
                        self._send(group, batch, drained=True)
                    else:
                        self.overdue.add(batch)  # many small groups: the rest waits for replies
        return sent

    @property
    def _room(self) -> int:
        """How many more calls may be under way from the overdue set."""
        if self._server_rejecting or self._helpless:
            return 0 if self._in_flight or self._retry is not None else 1
        most = _DRAIN_LEASES if self.node.single_key_mode else _DRAIN_CALLS
        # Not less for what is due: on a long way there may always be more of that under way.
        return min(most - self._drained_in_flight, self._options.max_calls_in_flight - self._in_flight)

    def _waits(self, lease: Lease) -> bool:
        return lease.state is OVERDUE and lease not in self._resting

    def _retry_later(self) -> None:
        if self._retry is None:
            # A tick more, because alarms round down and a pause should not.
            pause_s = self._backoff.pause() + self.timer.scale.tick_s
            self._retry = self.timer.call_at(self.timer.now + pause_s, self._retry_now, self)

    def heard(self, *, not_now: bool) -> None:
        """The server has answered a call: that it cannot now, or otherwise. It counts where each lease has its own call."""
        if not self.node.single_key_mode:
            return
        self._answers.add(not_now)
        if self._helpless and not not_now:
            self._helpless = False
            self._resting.clear()
            self.drain()

    def _retry_now(self, now: float) -> None:
        self._retry = None
        if self._answers:
            # One that answers some, and not others, is a proxy: the shards behind it have nothing to do with each other.
            self._helpless = self._answers == {True}
            self._answers.clear()
        # In turn: those that were refused have the nearest deadlines, perhaps, and would be all that is ever asked about.
        self.drain()
        if self._room > 0:
            self._resting.clear()
            self.drain()
        elif self._resting:
            self._retry_later()

    def ready(self, node: Node, *, new: bool) -> None:
        """Send what is overdue at once on a connection that answers; on the one for acquires there is nothing to do.

        After a ``new`` connection what is held is verified, because the server may have forgotten it.
        """
        if node is not self.node:
            return
        if new:
            self.verification = Verification(self) if self.table.held else None  # type: ignore[arg-type]
        self.router.ready()
        self._server_rejecting = self._helpless = False
        self._answers.clear()
        self._refused.clear()
        self._resting.clear()
        self.drain()
        self.outage.look()
        self.go_on_verifying()

    def go_on_verifying(self) -> None:
        """Go on with the verification, if one is under way."""
        if self.verification is not None:
            self.verification.go_on()

    @property
    def takes_more(self) -> bool:
        """Whether the node answers, does not refuse renewals, and has not too many of them unanswered."""
        return self.node.ready and not self._server_rejecting and self._in_flight < self._options.max_calls_in_flight

    def needs_none(self, lease: Lease) -> bool:
        """Whether a lease is not to be renewed now: never again, or not before that prolongs what was extended."""
        return lease.at_limit or lease.deadline > local_deadline(self.timer.now, group_of(lease).timeout_s)

    def look_at(self, lease: Lease, then: Callable[[], object] = noop) -> None:
        """Ask whether the server knows a HELD lease that needs no renewal now; ``then()`` is called with the answer.

        No answer proves nothing: the server is asked again after a while.
        """
        lock_type = group_of(lease).lock_type

        def looked() -> None:
            then()
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
        start_query(self.table, lease.name, lock_type.owned(lease), partial(lock_type.parse_owned, lease=lease), future)

    def server_is_well(self) -> None:
        """It has just granted a lock: if it refused renewals before, there is no need to wait for the next probe."""
        if self._server_rejecting:
            self.ready(self.node, new=False)
        self.outage.look()
