"""Renewal: due leases become batches, batches become outcomes, and unconfirmed leases are retried until their deadlines.

A lease that is held is in exactly one place: on the wheel (HELD), in an unanswered batch (RENEWING), or in the overdue
set (OVERDUE, or in another state in which its deadline is watched). The renewer moves it between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from wheel_lock.engine.interfaces import LeaseGroup, Router, Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.batch import Batch, RenewalGroup
from wheel_lock.engine.renewal.groups import Groups
from wheel_lock.engine.renewal.retry import RenewalRetries
from wheel_lock.engine.requests.cleanup import Cleanup
from wheel_lock.engine.requests.replication import ReplicationBarrier, new_node
from wheel_lock.errors import LossReason
from wheel_lock.lease import HELD, OVERDUE, RENEWING, Event, Lease, State, confirm_all, local_deadline, mark_sent
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.connection import PipelinedConnection
from wheel_lock.net.connector import Connector
from wheel_lock.net.node import Node
from wheel_lock.options import latest_renewal_s, shortest_timeout_s
from wheel_lock.protocol.resp import GONE, TAKEN
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError, code_of
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.timer import HashedWheelTimer

CROWD = 64  # entries in a tick from which on first renewals are spread: a twentieth of a millisecond of work
_JOINT_BATCHES = 4  # of a tick that others join: one or two milliseconds of work here, and three at the server
_MOST_FOUND = 256  # timeouts that a program computes may all be different
_SAME_PHASE = 8  # leases of a bulk acquire that share a phase: few enough for an even load, many enough to be cheap


class Renewer(RenewalRetries):
    """Keeps the leases of one node alive. Timer's thread only."""

    def __init__(self, table: LeaseTable, router: Router, connector: Connector) -> None:
        self.table = table
        self.router = router
        self.timer: HashedWheelTimer = table.timer
        self._options = table.state.options
        self._counters = table.state.counters
        self.domain: FailureDomain = self
        self.node: Node = new_node(table, self, connector, pipeline=self.new_connection)
        self._groups: Groups[RenewalGroup] = Groups()
        # The latest ones by the arguments of group(), so that an acquire finds its group by one look-up.
        self._found: dict[tuple[LockType, float, int, float | None], RenewalGroup] = {}
        self.replication: ReplicationBarrier | None = (
            ReplicationBarrier(table, self, connector) if self._options.min_replicas else None
        )
        self.acquiring_node: Node = self.node if self.replication is None else self.replication.node
        self.every_ticks = 1  # each node of several has ticks of its own:
        self.tick_share = 0  # those with this remainder modulo every_ticks
        self._reset()

    def new_connection(self, *arguments: Any) -> PipelinedConnection:
        """Return the connection for renewals; the arguments are those of its class."""
        return PipelinedConnection(*arguments)

    def start_empty(self) -> None:
        """In a forked child: drop everything, and mark the groups of the parent's leases as not alive."""
        self._groups.end()
        self._found.clear()
        self._reset()

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
            group = self._found[key] = self._find(*key)
        return group

    def _find(
        self, lock_type: LockType, timeout_s: float, timeout_ms: int, renew_every_s: float | None
    ) -> RenewalGroup:
        scale = self.timer.scale
        if renew_every_s is None:
            return self._group_of(lock_type, timeout_s, timeout_ms, scale.span(timeout_s))
        interval_ticks = scale.span(renew_every_s)
        # Usually enough time is left by far.
        if renew_every_s * 2 > timeout_s or interval_ticks < 10:
            interval_ticks = min(interval_ticks, scale.most(latest_renewal_s(timeout_s, scale.tick_s)))
        if interval_ticks < 1:
            raise ValueError(
                f"timeout must be at least {shortest_timeout_s(scale.tick_s):.3g} seconds on a timer with ticks of "
                f"{scale.tick_s:g} s, not {timeout_s:.10g}, if it is to be renewed"
            )
        return self._group_of(lock_type, timeout_s, timeout_ms, interval_ticks)

    def like(self, group: LeaseGroup) -> RenewalGroup:
        """Return the group with the parameters of another renewer's ``group``. From any thread."""
        return self._group_of(group.lock_type, group.timeout_s, group.timeout_ms, group.interval_ticks)

    def _group_of(self, lock_type: LockType, timeout_s: float, timeout_ms: int, interval_ticks: int) -> RenewalGroup:
        key = (lock_type, timeout_ms, interval_ticks)
        group = self._groups.get(key)
        if group is None:
            slack_ticks = int(interval_ticks * self._options.renewal_slack + 1e-6)
            new = RenewalGroup(self, lock_type, timeout_s, timeout_ms, interval_ticks, slack_ticks)
            group = self._groups.add(key, new)
        return group

    # -- onto the wheel ----------------------------------------------------------------------------------------------

    def schedule(self, lease: Lease, sent_at: float) -> None:
        """Put a lease whose grant or confirmation was sent at ``sent_at`` on the wheel, for its renewal or its loss."""
        group = group_of(lease)
        wheel, floor = self.timer.wheel, self.timer.scale.floor
        last = floor(lease.deadline) - 1  # a tick early: a loss is reported by the deadline
        if lease.at_limit:
            wheel.schedule(lease, last)
            return
        # An extended lease is renewed when that prolongs it, a shortened one after the same share of its time-to-live.
        extended = floor(lease.deadline - group.timeout_s)
        share = min((lease.deadline - sent_at) / local_deadline(0.0, group.timeout_s), 1.0)
        tick = max(floor(sent_at) + int(group.interval_ticks * share + 1e-6), extended + group.interval_ticks)
        if wheel.load(tick) >= CROWD:
            tick = self._spread(group, tick)
        if max(tick, wheel.now + 1) < last:
            wheel.schedule(lease, tick)
            if share > 1 - 1e-9:
                self._joint.note(group, lease.tick)
        else:
            self._hurry([lease])

    def begin(self, leases: Sequence[Lease], sent_at: float) -> None:
        """Put leases of one group that were granted together on the wheel for the first time."""
        if leases[0].limits is not None:
            for lease in leases:
                self.schedule(lease, sent_at)
            return
        group: LeaseGroup = leases[0].group  # type: ignore[assignment]
        wheel = self.timer.wheel
        tick = self.timer.scale.floor(sent_at) + group.interval_ticks
        if max(tick, wheel.now + 1) >= self.timer.scale.floor(leases[0].deadline) - 1:
            self._hurry(leases)
            return
        start = max(CROWD - wheel.load(tick), 0)
        if len(leases) == 1:
            wheel.schedule(leases[0], tick if start else self._spread(group, tick))
            self._joint.note(group, leases[0].tick)
            return
        wheel.schedule_many(leases[:start], tick)
        self._joint.note(group, tick)
        for first in range(start, len(leases), _SAME_PHASE):
            some = leases[first : first + _SAME_PHASE]
            wheel.schedule_many(some, self._spread(group, tick))
            self._joint.note(group, some[0].tick)

    def _hurry(self, leases: Sequence[Lease]) -> None:
        """Renew leases at once that have hardly any time left: the reply took nearly all of it, or it was shortened."""
        self.watch_overdue(leases)
        self.drain()

    def _spread(self, group: LeaseGroup, tick: int) -> int:
        """Return an earlier tick than ``tick``, one of this node's own."""
        tick -= group.next_phase()
        return tick - (tick - self.tick_share) % self.every_ticks

    def _reschedule(self, kept: Sequence[Lease], batch: Batch) -> None:
        """Put confirmed leases on the wheel again, each one interval after it was due."""
        interval_ticks = batch.params.interval_ticks
        # Leases that were due long ago would be due again at once: their next renewal counts from this one.
        punctual = not batch.early and self.timer.wheel.now - kept[0].tick <= max(interval_ticks // 4, 1)
        if (punctual or batch.early) and kept[0].limits is None:
            for tick in self.timer.wheel.rearm(kept, interval_ticks):
                self._joint.note(batch.params, tick)
        else:
            seconds = self.timer.scale.seconds
            for lease in kept:
                self.schedule(lease, seconds(lease.tick) if punctual else batch.sent_at)

    # -- due leases --------------------------------------------------------------------------------------------------

    def partition_due(self, entries: Iterable[Lease], now: float) -> list[Lease]:
        """Deal with due leases that have limits, an owner that has ended, or no time left; return those to renew.

        While the rest of a message waits, an owner's last release may wait behind it. So its leases are renewed meanwhile.
        """
        live: list[Lease] = []
        ended: list[Lease] = []
        tick, goes_on = self.timer.wheel.now, self.timer.goes_on
        for lease in entries:
            if lease.state is not HELD or lease in self.timer.wheel:
                continue  # a call before this one in the same turn has ended it, or put it on the wheel again
            lapsing = lease.at_limit and self.timer.scale.floor(lease.deadline) - 1 <= tick
            if lapsing or lease.loss is not None or now >= lease.deadline:
                self.table.mark_lost([lease])
                continue
            if lease.owner.ended:
                if not goes_on:
                    self.table.mark_lost([lease], LossReason.ABANDONED)
                    continue
                ended.append(lease)
            if not lease.at_limit:
                live.append(lease)
            else:
                self.schedule(lease, now)
        self.table.abandon_later(ended)
        return live

    def renew(self, group: LeaseGroup, leases: list[Lease]) -> None:
        """Send renewals for HELD leases that are due, and for those that join them, as far as the node can take them.

        The others become overdue.
        """
        joining: Sequence[tuple[LeaseGroup, list[Lease]]] = ()
        if self.node.ready and not self._server_rejecting and group.lock_type.renew not in self._refused:
            calls = self._options.max_calls_in_flight - self._in_flight
            room = min(_JOINT_BATCHES * self._options.batch_size, calls * self.node.batch_size) - len(leases)
            if room > 0:
                joining = self._joint.take(leases[-1].tick, room)
                if joining and any(other is group for other, _ in joining):
                    own = [lease for other, some in joining if other is group for lease in some]
                    # A loss among those that join may have ended another one.
                    leases = [lease for lease in leases + group.live(own) if lease.state is HELD]
            leases = self._send_due(group, leases, calls)
        if leases:
            self.watch_overdue(leases)
            self.node.connect()
            self.drain()
            self.router.rehome(leases)
        for other, some in joining:
            if other is not group and (live := other.live(some)):
                self.renew(other, live)

    def _send_due(self, group: LeaseGroup, leases: list[Lease], calls: int) -> list[Lease]:
        """Send renewals of ``leases`` in at most ``calls`` calls; return those that are left."""
        size = self.node.batch_size
        if calls > 0 and 0 < len(leases) <= size:
            self.send(group, leases)
            return []
        room = max(calls, 0) * size
        for start in range(0, min(room, len(leases)), size):
            self.send(group, leases[start : min(start + size, room)])
        return leases[room:]

    def send(self, group: LeaseGroup, leases: list[Lease], *, drained: bool = False, early: bool = False) -> None:
        """Send one batch about HELD or OVERDUE leases that are neither on the wheel nor in the overdue set."""
        if leases[0].state is not HELD and leases[0].state is not OVERDUE:
            return  # a failure in the call before this one has ended all leases of this node
        nearest = mark_sent(leases)
        batch = Batch(self, group, leases, drained, early)
        self._in_flight += 1
        self._drained_in_flight += drained
        self._counters.batches += 1
        # Silence is suspicious after a sixth of the timeout, or after half of the time left if that is less.
        timer = self.timer
        floor, left_s = timer.scale.floor, (nearest - timer.now) / 2
        timer.wheel.schedule(
            batch, floor(timer.now + (group.timeout_s / 6 if group.timeout_s / 6 < left_s else left_s))
        )
        tick = batch.tick
        if tick >= floor(nearest) - 2:
            batch.overdue = True  # too near for a second look: its deadlines are watched from the start
            self.watch_overdue(leases)
        self.node.send(batch)

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def retire_batch(self, batch: Batch) -> None:
        """Remove a batch that has been answered, or will not be."""
        self._in_flight -= 1
        self._drained_in_flight -= batch.drained
        self._silent.discard(batch)
        self.timer.wheel.cancel(batch)
        if batch.overdue:
            for lease in batch.leases:
                if lease.state is RENEWING:  # those in other states are there for other reasons
                    self.overdue.discard(lease)
        if batch.early:
            self.checks.answered()
        elif self.checks.blocked:
            self.checks.go_on()

    def batch_emptied(self, batch: Batch) -> None:
        """Handle that all leases of a batch have ended before it could be sent again."""
        self.retire_batch(batch)
        self._probe_again()

    def _probe_again(self) -> None:
        """Schedule a retry while the server rejects calls: a batch that ended without an answer may have been the probe."""
        if self._server_rejecting or self._all_rejecting:
            self._retry_later()

    def confirmed(self, batch: Batch, failed: Sequence[tuple[int, int | ServerError]]) -> None:
        """Confirm the leases of a batch but for the ``failed`` entries."""
        now = self.timer.clock.now()  # not the turn's time: the process may have been stopped before the reply was read
        if self._server_rejecting:
            self._server_rejecting = False
            self._resting.clear()
        self._refused.pop(batch.params.lock_type.renew, None)
        self.retire_batch(batch)
        self.confirmed_at = now
        leases = batch.leases
        if failed:
            exceptional = dict(failed)
            self._due_now(batch, [leases[index] for index in exceptional])
            self._some_failed(batch, [(leases[index], status) for index, status in failed])
            leases = [lease for index, lease in enumerate(leases) if index not in exceptional]
        if not self.router.stable:
            leases = [lease for lease in leases if group_of(lease).renewer is self]  # others have moved
        if leases:
            self._take_confirmation(batch, leases, now)
        if self.overdue:
            self.drain()
        else:
            self._backoff.reset()
            if self.outage.since is not None:
                self.outage.look()

    def _take_confirmation(self, batch: Batch, leases: Sequence[Lease], now: float) -> None:
        result = confirm_all(leases, batch.sent_at, now, batch.params.timeout_s)
        counters, seconds = self._counters, self.timer.scale.seconds
        if result.slack_s < counters.slack_min_s:
            counters.slack_min_s = result.slack_s
        if renewed := len(result.kept) + len(result.limited):
            counters.slack.add(result.slack_s, renewed)
        for kept in (result.kept, result.limited):
            if not kept:
                continue
            counters.renewed += len(kept)
            if batch.early:
                pass  # they were not due
            elif kept[0].tick == kept[-1].tick and not batch.drained:
                counters.lag.add(now - seconds(kept[0].tick), len(kept))
            else:
                for tick, times in Counter([lease.tick for lease in kept]).items():
                    if tick >= 0:  # else it was taken off the wheel before it was due
                        counters.lag.add(now - seconds(tick), times)
            self._reschedule(kept, batch)
        if result.other:
            self._too_late(result.other)

    def _too_late(self, leases: Sequence[Lease]) -> None:
        """End leases whose confirmation came after their deadline, and release them: their keys are alive."""
        self.table.mark_lost([lease for lease in leases if lease.state is RENEWING])
        lost = [lease for lease in leases if lease.state is State.LOST]
        if lost:
            self.clean_up(lost)

    def clean_up(self, leases: Sequence[Lease], node: Node | None = None) -> None:
        """Release, owner-checked, leases of one group that are not held any more; behind what was sent to ``node``."""
        group = group_of(leases[0])
        if not group.alive:
            return  # in a forked child they are the parent's
        until = max(self.timer.now + group.timeout_s, *[lease.max_expiry for lease in leases])
        Cleanup(self.table, node or self.node, group.lock_type, leases, until).start()

    def _some_failed(self, batch: Batch, failed: Sequence[tuple[Lease, int | ServerError]]) -> None:
        """Deal with the entries of a batch that were not renewed, unless their leases have ended meanwhile."""
        # A node answers a call that declares its keys with MOVED, and without a cluster there is no other node.
        may_be_misrouted = not self.router.stable and not batch.declared
        gone: list[Lease] = []
        taken: list[Lease] = []
        unknown: list[Lease] = []
        misrouted: list[Lease] = []
        errors: list[ServerError] = []
        for lease, status in failed:
            if lease.state is not RENEWING or group_of(lease).renewer is not self:
                continue
            if status == GONE:
                gone.append(lease)
            elif may_be_misrouted and code_of(status) == NOT_LOCAL:
                lease.transition(Event.OUTCOME_UNKNOWN)
                misrouted.append(lease)
            elif status == TAKEN or code_of(status) == "WRONGTYPE":
                taken.append(lease)
            else:
                lease.transition(Event.OUTCOME_UNKNOWN)
                unknown.append(lease)
                if isinstance(status, ServerError):
                    errors.append(status)
        self.table.mark_lost(gone, LossReason.KEY_GONE)
        self.table.mark_lost(taken, LossReason.TAKEN)
        if misrouted:
            self._send_alone(misrouted)
        if unknown:
            self.router.refused(self.node, errors)
            self.outage.begin(errors[0] if errors else None)
            self._counters.unknown += len(unknown)
            self.watch_overdue(unknown)
            self._defer(unknown)

    def _send_alone(self, misrouted: Sequence[Lease]) -> None:
        """Send a batch for each OVERDUE lease that the node does not own: its keys are declared, so the reply is MOVED."""
        self.router.refresh()
        for lease in self.router.rehome(misrouted):
            self.send(group_of(lease), [lease], drained=True)

    def failed(self, batch: Batch, error: ServerError) -> None:
        """Handle an error reply to a whole batch (BUSY, LOADING, READONLY, ...). It proves nothing about any lease."""
        if batch.node.single_key_mode and len(batch.leases) == 1:  # after ASK that is another node
            self.batch_deferred(batch)  # behind a proxy the error may concern this lease alone
        else:
            self.interrupted(batch)
            script = batch.params.lock_type.renew
            if script in self._refused:  # other scripts have been executed since, or the rejection is known already
                del self._refused[script]  # to come last
            else:
                self._server_rejecting = True
            self._refused[script] = None
            self._retry_later()
        self.router.refused(self.node, [error])
        self.outage.begin(error)

    def drop_misrouted(self) -> None:
        """Migrate the leases of silent batches that live on other nodes by now, without waiting for the reply."""
        for batch in tuple(self._silent):
            for lease in batch.leases:
                if lease.state is RENEWING and group_of(lease).renewer is self:
                    home = self.router.shard_of(lease.key)
                    if home is not self:
                        self.overdue.discard(lease)
                        lease.transition(Event.OUTCOME_UNKNOWN)
                        self.router.migrate(lease, home)

    def moved(self, batch: Batch, home: Shard) -> None:
        """Migrate the lease of a batch of one that the node has answered with a redirection to ``home``."""
        self.interrupted(batch)
        for lease in batch.leases:
            if lease.state is OVERDUE:
                self.router.migrate(lease, home)
        self._probe_again()

    def batch_deferred(self, batch: Batch) -> None:
        """Retry a batch of one lease after a pause: it was refused for a reason that concerns its slot alone."""
        self.interrupted(batch)
        self._defer([lease for lease in batch.leases if lease.state is OVERDUE and group_of(lease).renewer is self])

    def interrupted(self, batch: Batch) -> None:
        """Retire a batch that will get no reply; its leases become overdue."""
        self.retire_batch(batch)
        # A lease that has moved meanwhile is renewed by another node, and that renewal is not in doubt.
        unknown = [lease for lease in batch.leases if lease.state is RENEWING and group_of(lease).renewer is self]
        self._due_now(batch, unknown)
        self._counters.unknown += 0 if batch.silent else len(unknown)
        for lease in unknown:
            lease.transition(Event.OUTCOME_UNKNOWN)
        self.watch_overdue(unknown)
        self.router.rehome(unknown)

    def _due_now(self, batch: Batch, leases: Iterable[Lease]) -> None:
        """Count the lag of leases whose early check has failed from now: they were not due before."""
        if batch.early:
            for lease in leases:
                lease.tick = self.timer.wheel.now

    def batch_timed_out(self, batch: Batch) -> None:
        """Watch the deadlines of an unanswered batch's leases, and suspect the connection."""
        waiting = [lease for lease in batch.leases if lease.state is RENEWING]
        self._counters.unknown += len(waiting)
        if not batch.overdue:
            batch.overdue = True
            self.watch_overdue(waiting)
        batch.silent = True
        self._silent.add(batch)
        batch.node.suspect()
