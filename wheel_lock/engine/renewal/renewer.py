"""The renewer of one node: the groups of its leases, the flow of their renewals, and what its node reports.

A group puts its leases on the wheel, and sorts those that are due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from wheel_lock.block import Block, all_plain, belong_together, block_of
from wheel_lock.engine.interfaces import LeaseGroup, Router, group_of
from wheel_lock.engine.leases import BelowEngine, LeaseTable
from wheel_lock.engine.loss_events import log_given_up
from wheel_lock.engine.renewal.flow import Flow
from wheel_lock.engine.renewal.retries import WELL, Overdue, Sign
from wheel_lock.engine.requests.cleanup import Cleanup
from wheel_lock.engine.requests.replication import Confirmed, ReplicationBarrier, new_node
from wheel_lock.errors import LossReason
from wheel_lock.lease import HELD, Event, Group, Lease, local_deadline
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.connection import PipelinedConnection
from wheel_lock.net.connector import Connector
from wheel_lock.net.node import Node, NodeObserver
from wheel_lock.observe.health import LATE_S, NodeHealth
from wheel_lock.options import latest_renewal_s, shortest_timeout_s
from wheel_lock.protocol.resp import LONG_TEXT, error_text, int_arg
from wheel_lock.rows import like
from wheel_lock.runtime.ends import ANEW, End, Part, end_all
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.weak_registry import WeakRegistry

G = TypeVar("G", bound=Group)

CROWD = 64  # leases in a tick from which on first renewals are spread: a twentieth of a millisecond of work
_MOST_FOUND = 256  # timeouts that a program computes may all be different
_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: its multiples spread evenly for any number of leases (Knuth 6.4)


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class RenewalGroup:
    """Leases of one lock type, timeout and renewal interval on one node: they can share a script call.

    Attributes:
        interval_ticks: The ticks between renewals.
        slack_ticks: By how many ticks a renewal may come early to join others that are due.
    """

    renewer: Renewer
    lock_type: LockType
    timeout_s: float
    timeout_ms: int
    interval_ticks: int
    slack_ticks: int
    ttl: bytes
    alive: bool = True
    _phase: int = 0

    def illegal(self, lease: Lease, event: Event) -> None:
        self.renewer.table.mark_illegal(lease, event)

    def domains(self, entries: list[Lease]) -> tuple[FailureDomain]:
        return (self.renewer,)  # after a failure it is unknown which leases of the node are watched

    # -- onto the wheel ----------------------------------------------------------------------------------------------

    def begin(self, leases: Sequence[Lease], sent_at: float) -> None:
        """Put leases that were granted together, by an acquire sent at ``sent_at``, on the wheel for the first time."""
        first = like(leases)
        if first.limits is not None:
            for lease in leases:
                self.schedule(lease, sent_at)
            return
        wheel, floor, joint = self.renewer.timer.wheel, self.renewer.timer.scale.floor, self.renewer.flow.joint
        tick, block = floor(sent_at) + self.interval_ticks, block_of(first)
        if max(tick, wheel.now + 1) >= floor(first.own_deadline) - 1:
            self._hurry(leases if block is None else block.split())
            return
        if (wheel.load(tick) + 1) * len(leases) > CROWD:  # as if each of the others were as large
            tick = self._spread(tick)
        if block is None and len(leases) > 1 and belong_together(leases):
            block = Block(leases)
        entries: Sequence[Lease | Block] = leases if block is None else [block]
        wheel.schedule_many(entries, tick)
        joint.note(self, entries[0].tick)

    def schedule(self, lease: Lease, sent_at: float) -> None:
        """Put a lease whose grant or confirmation was sent at ``sent_at`` on the wheel, for its renewal or its loss."""
        wheel, floor = self.renewer.timer.wheel, self.renewer.timer.scale.floor
        last = self.renewer.last_tick(lease)
        if lease.at_limit:
            wheel.schedule(lease, last)
            return
        # An extended lease is renewed when that prolongs it, a shortened one after the same share of its time-to-live.
        extended = floor(lease.deadline - self.timeout_s)
        share = min((lease.deadline - sent_at) / local_deadline(0.0, self.timeout_s), 1.0)
        tick = max(floor(sent_at) + int(self.interval_ticks * share + 1e-6), extended + self.interval_ticks)
        if wheel.load(tick) >= CROWD:
            tick = self._spread(tick)
        if max(tick, wheel.now + 1) < last:
            wheel.schedule(lease, tick)
            if share > 1 - 1e-9:
                self.renewer.flow.joint.note(self, lease.tick)
        else:
            self._hurry([lease])

    def _hurry(self, leases: Sequence[Lease]) -> None:
        """Renew leases at once that have hardly any time left: the reply took nearly all of it, or it was shortened."""
        self.renewer.watch_overdue(leases)
        self.renewer.drain()

    def _spread(self, tick: int) -> int:
        """Return an earlier tick than ``tick``, one of the node's own.

        Leases that were acquired together would be due together for ever, so those of each call get a phase of their own.
        """
        self._phase = (self._phase + _GOLDEN) & 0xFFFFFFFF
        tick -= self._phase * (self.interval_ticks - self.interval_ticks // 8) >> 32
        return tick - (tick - self.renewer.tick_share) % self.renewer.every_ticks

    # -- due leases --------------------------------------------------------------------------------------------------

    def due(self, entries: list[Lease | Block], now: float) -> None:
        """Renew ``entries``, and leases that join them."""
        if live := self.live(entries):
            self.renewer.flow.renew(self, live)

    def live(self, entries: list[Lease | Block]) -> list[Lease | Block]:
        """Return those of the due ``entries`` to renew; losses come first."""
        held, timer, table = HELD, self.renewer.timer, self.renewer.table
        now = timer.clock.now()  # the calls before this one in the turn may have taken long
        # A call before this one in the same turn may have released, moved or lost a lease.
        if all_plain(entries, now):
            return entries
        live: list[Lease | Block] = []
        ended: list[Lease] = []
        for entry in entries:
            if isinstance(entry, Block) and all_plain([entry], now):
                live.append(entry)
                continue
            for lease in entry.split() if isinstance(entry, Block) else (entry,):
                if lease.state is not held or lease in timer.wheel:
                    continue  # a call before this one in the same turn has ended it, or put it on the wheel again
                if self.renewer.lapses_now(lease) or lease.loss is not None or now >= lease.deadline:
                    table.mark_lost([lease])
                    continue
                if lease.owner.ended:
                    ended.append(lease)
                if lease.at_limit:
                    self.schedule(lease, now)
                else:
                    live.append(lease)
        self.renewer.flow.retries.abandon(ended)
        return [entry for entry in live if entry.state is held]  # a loss may have ended another one, too


class Groups(Generic[G]):
    """The groups of one node, or of a quorum, each of which lives as long as its leases, and lock objects.

    From any thread: two may make a group of one key, and both are good.
    """

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[Hashable, G] = WeakValueDictionary()
        self._all: WeakRegistry[G] = WeakRegistry()

    def get(self, key: Hashable) -> G | None:
        """Return the group of ``key``, or None."""
        return self._by_key.get(key)

    def add(self, key: Hashable, group: G) -> G:
        """Add ``group``, and return it."""
        self._all.add(group)
        self._by_key[key] = group
        return group

    def end(self) -> None:
        """In a forked child: mark all groups as not alive, for their leases are the parent's, and forget them."""
        for group in self._all:
            group.alive = False
        self._by_key = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._all)


class Renewer(BelowEngine, NodeObserver):
    """Keeps the leases of one node alive. Timer's thread only, but for what says otherwise.

    Attributes:
        flow: The renewals.
        nodes: The node, once for each of its connections.
        every_ticks, tick_share: Each node of several has ticks of its own: those with remainder ``tick_share``.
    """

    def __init__(self, table: LeaseTable, router: Router, connector: Connector) -> None:
        self.table = table
        self.router = router
        self.timer: HashedWheelTimer = table.timer
        self._options = table.state.options
        self.domain: FailureDomain = self
        self.node: Node = new_node(table, self, connector, pipeline=self.new_connection)
        self._groups: Groups[RenewalGroup] = Groups()
        # The latest ones by the arguments of group(), so that an acquire finds its group by one look-up.
        self._found: dict[tuple[LockType, float, int, float | None], RenewalGroup] = {}
        self.nodes: list[Node] = [self.node]
        self.confirm_grant: Callable[[Confirmed], object] | None = None
        self._parts: list[Part] = [self.node]
        if self._options.min_replicas:
            barrier = ReplicationBarrier(table, self, connector)
            self.nodes.append(barrier.node)
            self.confirm_grant = barrier.confirm
            self._parts.append(barrier)
        self.acquiring_node: Node = self.nodes[-1]
        self.every_ticks = 1
        self.tick_share = 0
        self._reset()

    def _reset(self) -> None:
        self.confirmed_at: float = -math.inf
        self.flow: Flow = Flow(self, self.table, self.router)

    @property
    def new_connection(self) -> Callable[..., PipelinedConnection]:
        """The class of the connection for renewals, or a function with the arguments of that."""
        return PipelinedConnection

    def group(
        self, lock_type: LockType, timeout_s: float, timeout_ms: int, renew_every_s: float | None
    ) -> RenewalGroup:
        """Return the group for these parameters. From any thread.

        Raises:
            ValueError: The timer's ticks are too long for this timeout.
        """
        key = (lock_type, timeout_s, timeout_ms, renew_every_s)
        group = self._found.get(key)
        if group is None:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            group = self._group_of(lock_type, timeout_s, timeout_ms, self._interval_ticks(timeout_s, renew_every_s))
            self._found[key] = group
        return group

    def _interval_ticks(self, timeout_s: float, renew_every_s: float | None) -> int:
        scale = self.timer.scale
        if renew_every_s is None:
            return scale.span(timeout_s)
        interval_ticks = min(scale.span(renew_every_s), scale.most(latest_renewal_s(timeout_s, scale.tick_s)))
        if interval_ticks < 1:
            raise ValueError(
                f"timeout must be at least {shortest_timeout_s(scale.tick_s):.3g} seconds on a timer with ticks of "
                f"{scale.tick_s:g} s, not {timeout_s:.10g}, if it is to be renewed"
            )
        return interval_ticks

    def like(self, group: LeaseGroup) -> RenewalGroup:
        """Return the group with the parameters of another renewer's ``group``. From any thread."""
        return self._group_of(group.lock_type, group.timeout_s, group.timeout_ms, group.interval_ticks)

    def _group_of(self, lock_type: LockType, timeout_s: float, timeout_ms: int, interval_ticks: int) -> RenewalGroup:
        key = (lock_type, timeout_ms, interval_ticks)
        group = self._groups.get(key)
        if group is None:
            slack_ticks = int(interval_ticks * self._options.renewal_slack + 1e-6)
            ttl = int_arg(timeout_ms)
            new = RenewalGroup(self, lock_type, timeout_s, timeout_ms, interval_ticks, slack_ticks, ttl)
            group = self._groups.add(key, new)
        return group

    # -- leases ------------------------------------------------------------------------------------------------------

    def granted(self, leases: Sequence[Lease], now: float) -> None:
        """Note that the server has granted ``leases``: it executes calls."""
        self.confirmed_at = now
        flow = self.flow
        if flow.retries.condition is not WELL and flow.retries.note(Sign.GRANTED):
            self._resume()
        elif flow.outage.since is not None:
            flow.outage.look()

    def untrack(self, lease: Lease) -> None:
        """Remove a lease from its block, the wheel and the overdue set. O(1), O(log n) if it is overdue."""
        block = block_of(lease)
        if block is not None:
            block.leave(lease)
            if not block.size:
                self.timer.wheel.cancel(block)
        elif not self.timer.wheel.cancel(lease):
            self.flow.retries.discard(lease)

    def take_out(self, lease: Lease) -> None:
        """Have a lease that is in a block be by itself from now on: on the wheel, or in the call, as its block is."""
        block = block_of(lease)
        if block is not None:
            due = block.tick
            self.untrack(lease)
            if lease.state is HELD:
                self.timer.wheel.schedule(lease, due)

    def watch_overdue(self, leases: Sequence[Lease]) -> None:
        """Watch ``leases`` until their deadlines; HELD ones become OVERDUE."""
        self.flow.retries.watch(leases)

    @property
    def overdue(self) -> Overdue:
        return self.flow.retries.overdue

    def drain(self) -> None:
        """Send overdue leases as far as there is room."""
        self.flow.drain()

    def last_tick(self, lease: Lease) -> int:
        """Return the tick at which the loss of ``lease`` is reported: one early, so that it is by the deadline."""
        return self.timer.scale.floor(lease.deadline) - 1

    def lapses_now(self, lease: Lease) -> bool:
        """Return True if ``lease`` is at its limit, and in the next tick its deadline may have passed."""
        return lease.at_limit and self.last_tick(lease) <= self.timer.wheel.now

    def needs_none(self, lease: Lease) -> bool:
        """Return True if a renewal now is pointless: the lease is at its limit, or extended beyond one timeout."""
        return lease.at_limit or lease.deadline > local_deadline(self.timer.now, group_of(lease).timeout_s)

    def doubt(self, leases: Iterable[Lease] | None) -> None:
        self.flow.checks.doubt(leases)

    def clean_up(self, leases: Sequence[Lease], node: Node | None = None) -> None:
        """Release, owner-checked, leases of one group that are not held any more; behind what was sent to ``node``."""
        group = group_of(leases[0])
        if not group.alive:
            return  # in a forked child they are the parent's
        until = max(self.timer.now + group.timeout_s, *[lease.max_expiry for lease in leases])
        Cleanup(self.table, node or self.node, group.lock_type, leases, until).start()

    # -- the node ----------------------------------------------------------------------------------------------------

    def is_needed(self, node: Node) -> bool:
        return bool(self.table.held) and self.router.owns_names(self)

    def queued(self, node: Node) -> None:
        self.router.queued()

    def trouble(self, node: Node) -> None:
        if not self.node.ready:
            self.flow.retries.note(Sign.TROUBLE)
        self.flow.outage.begin()
        self.router.refresh()

    def ready(self, node: Node, *, new: bool) -> None:
        if new:
            self.table.on_ended()
        if node is not self.node or not node.ready:
            return  # the connection for acquires, or one that has failed since
        if new:
            self.flow.checks.verify(self.table.held.entries())
            if self.table.keeping is not None:
                self.table.keeping.connected(node)
        self.router.ready()
        self.flow.retries.note(Sign.READY)
        self._resume()

    def _resume(self) -> None:
        self.flow.drain()
        self.flow.outage.look()
        self.flow.checks.go_on()

    def health(self, now: float) -> NodeHealth:
        """Return the health of the node at ``now``, in seconds of the timer's clock. From any thread."""
        node, since, trouble = self.node, self.flow.outage.since, None
        ready, connected, error = node.ready, node.connected, node.last_error
        if connected and not ready:
            trouble = "it does not answer"
        elif error is not None and (node.unreachable or self.is_needed(node)):
            trouble = f"not connected: {error_text(error, LONG_TEXT)}"
        elif since is not None and now - since > LATE_S and self.table.held:
            trouble = f"it has not confirmed all renewals for {now - since:.1f} s"
        age_s = None if self.confirmed_at == -math.inf else max(now - self.confirmed_at, 0.0)
        return NodeHealth(node.connector.describe(), ready, len(self.overdue), age_s, trouble)

    # -- ends --------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if there is no connection, no call in flight and no overdue lease."""
        flow = self.flow
        return not (flow.in_flight or self.overdue or any(node.busy or node.connected for node in self.nodes))

    def end(self, how: End, error: Exception) -> None:
        """End the connections, and what is in flight; in a forked child the groups of the parent's leases, too."""
        end_all(self._parts, how, error)
        if how is End.FORKED:
            self._groups.end()
            self._found.clear()
        elif how in ANEW:
            self.flow.retries.stop()  # another flow takes the place of this one
            self.flow.checks.stop()
        if how in ANEW:
            self._reset()

    def crashed(self, error: Exception) -> None:
        """End all leases of this node after an exception in the library's own code; nothing else is in doubt."""
        leases = [lease for lease in self.table.held if group_of(lease).renewer is self]
        log_given_up(len(leases), error)
        self.table.mark_lost(leases, LossReason.INTERNAL_ERROR)
        self.end(End.FAILED, error)
