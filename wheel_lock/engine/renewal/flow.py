"""The flow of renewals: what is due becomes batches, batches become outcomes, and what is unconfirmed is sent again.

A lease that is held is in exactly one place: on the wheel (HELD), in an unanswered batch (RENEWING), or in the overdue
set (OVERDUE, or in another state in which its deadline is watched). The flow moves it between them. On the wheel and in a
batch it may be there as one of a block: leases that one call has confirmed stay together until something happens to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from wheel_lock.block import Block, belong_together, in_order, parts_of
from wheel_lock.engine.interfaces import Later, LeaseGroup, Router, Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.checks import BLOCKED, EarlyChecks
from wheel_lock.engine.renewal.joint import JointTicks
from wheel_lock.engine.renewal.retries import WELL, Outage, Retries, Sign
from wheel_lock.engine.requests.base import Request
from wheel_lock.engine.requests.execution import BY_SHA1
from wheel_lock.errors import LossReason
from wheel_lock.lease import HELD, OVERDUE, RENEWING, Event, Lease, State, confirm_all, mark_sent
from wheel_lock.protocol.resp import GONE, TAKEN, Reply, exceptions
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, NOT_NOW, ServerError, code_of

_JOINT_BATCHES = 4  # of a tick that others join: one millisecond of work here, and six at the server
_DRAIN_CALLS = 32  # in flight from the overdue set: 50 ms of a server's time, so that due renewals are not delayed
_MOST_DRAIN_CALLS = 1000  # the same, where a call is about one lease

# By calls in C.
_ARGS: Callable[[Lease], bytes] = attrgetter("lease_args")
_SIZE: Callable[[Lease | Block], int] = attrgetter("size")


class Batch(Request):
    """One renewal call about many leases of one group.

    Attributes:
        params: The group of the leases when the batch was made.
        block: The block of the leases, if they are one, until its call meets with trouble.
        drained: True if the leases come from the overdue set, in order of deadline and not of due tick.
        early: True if it checks leases that were not due.
        overdue: True if the leases are watched in the overdue set, too.
        silent: True if the batch was not answered within its time limit.
    """

    __slots__ = ("_flow", "block", "drained", "early", "leases", "overdue", "params", "silent")

    leases: Sequence[Lease]
    may_wait = False

    def __init__(
        self, flow: Flow, params: LeaseGroup, leases: Sequence[Lease] | Block, drained: bool, early: bool
    ) -> None:
        super().__init__(flow.table, flow.shard.node)
        self._flow = flow
        self.params: LeaseGroup = params
        self.block: Block | None = leases if isinstance(leases, Block) else None
        self.leases = leases.leases if isinstance(leases, Block) else leases
        self.drained: bool = drained
        self.early: bool = early
        self.overdue: bool = False
        self.silent: bool = False

    def split(self) -> None:
        """Have the leases be renewed one by one from here on: something else than their confirmation has come."""
        if self.block is not None:
            self.block.split()
            self.block = None

    def redirect_to(self, shard: Shard) -> None:
        """Migrate the lease of a batch of one. It is overdue at ``shard``, which renews it."""
        self._flow.interrupted(self)
        for lease in self.leases:
            if lease.state is OVERDUE:
                self.table.router.migrate(lease, shard)

    def retry(self, later: Later, error: ServerError) -> bool:
        # The renewer decides when. A batch of several leases was refused for a reason that concerns the node.
        if len(self.leases) == 1:
            self._flow.deferred(self)
        return len(self.leases) == 1

    def call(self) -> Command:
        return Command(self.params.lock_type.renew, 0, *self._arguments())

    def _arguments(self) -> tuple[int, bytes]:
        params, block = self.params, self.block
        if block is not None:
            self.leases = block.leases
        body = b"".join(map(_ARGS, self.leases)) if block is None else block.encoded()
        return 1 + params.lock_type.args_per_lease * len(self.leases), params.ttl + body

    def encode(self, capability: int) -> bytes:
        if self.node.declares:
            return super().encode(capability)
        self.sent_at: float = self.timer.now
        self.sent()
        form = self.params.lock_type.renew.form(capability)
        return form.call(0, *self._arguments(), use_eval=self.sending is not BY_SHA1)

    @property
    def wanted(self) -> bool:
        if self.block is not None:
            return self.block.size > 0
        return any(lease.state is RENEWING for lease in self.leases)

    awaited = wanted

    def on_reply(self, reply: Reply) -> None:
        if reply == []:
            self._flow.confirmed(self, ())
        else:
            self.split()
            super().on_reply(reply)

    def resend(self) -> None:
        self.split()
        # Nothing may be sent for a lease that has been released or lost since the first try.
        self.leases = [lease for lease in self.leases if lease.state is RENEWING]
        if self.leases:
            self.node.send(self)
        else:
            self._flow.interrupted(self)

    def value_reply(self, reply: Reply) -> None:
        self._flow.confirmed(self, exceptions(reply, len(self.leases)))

    def error_reply(self, error: ServerError) -> None:
        flow = self._flow
        if not flow.shard.node.answers_for_all and flow.retries.note_answer(not_now=error.code in NOT_NOW):
            flow.drain()
        super().error_reply(error)

    def redirect(self, error: ServerError) -> bool:
        redirected = super().redirect(error)
        if redirected and error.code not in ("MOVED", "ASK"):
            self._flow.outage.begin(error)
        return redirected

    def on_keys_required(self) -> None:
        self._flow.interrupted(self)
        self._flow.drain()

    def on_error(self, error: ServerError) -> None:
        """Handle an error reply to the whole call (BUSY, LOADING, READONLY, ...). It proves nothing about any lease."""
        flow = self._flow
        if not self.node.answers_for_all and len(self.leases) == 1:  # after ASK that is another node
            flow.deferred(self)
        else:
            flow.interrupted(self)
            flow.retries.note_refused(self.params.lock_type.renew)
        self.table.router.refused(flow.shard.node, [error])
        flow.outage.begin(error)

    def crashed(self, error: Exception) -> None:
        self.timer.wheel.cancel(self)
        self._flow.shard.crashed(error)

    def on_connection_lost(self, error: Exception) -> None:
        self.split()
        self._flow.interrupted(self)

    on_unavailable = on_connection_lost

    def on_timeout(self, now: float) -> None:
        """Watch the deadlines of the leases, and suspect the connection."""
        self.split()
        waiting = [lease for lease in self.leases if lease.state is RENEWING]
        self.table.state.counters.unknown += len(waiting)
        if not self.overdue:
            self.overdue = True
            self._flow.retries.watch(waiting)
        self.silent = True
        self._flow.silent.add(self)
        self.node.suspect()


class Flow:
    """The renewals of one node. Timer's thread only.

    Attributes:
        joint: The ticks at which leases are due.
        retries: The overdue leases, and the condition of the node.
        checks: The leases to be checked ahead of their time.
        outage: The outage of the node, if there is one.
        in_flight: The number of calls in flight.
        silent: The batches that were not answered within their time limit.
    """

    def __init__(self, shard: Shard, table: LeaseTable, router: Router) -> None:
        self.shard = shard
        self.joint: JointTicks = JointTicks(shard, table.timer)
        self.retries: Retries = Retries(shard, table, self._retry)
        self.checks: EarlyChecks = EarlyChecks(shard, table, self.send, self._takes_more)
        self.outage: Outage = Outage(table, shard, self.retries)
        self.table = table
        self._router = router
        self._node = shard.node
        self._timer = table.timer
        self._options = table.state.options
        self._counters = table.state.counters
        self.in_flight: int = 0
        self.silent: set[Batch] = set()

    def _takes_more(self) -> bool:
        """Return whether the node answers, does not refuse renewals, and has room for another call."""
        return self.retries.condition.accepts and self.in_flight < self._options.max_calls_in_flight

    # -- calls -------------------------------------------------------------------------------------------------------

    def renew(self, group: LeaseGroup, entries: list[Lease | Block]) -> None:
        """Send renewals for HELD leases that are due, and for those that join them, as far as the node can take them.

        The others become overdue.
        """
        joining: Sequence[tuple[LeaseGroup, list[Lease | Block]]] = ()
        calls, size = 0, self._node.batch_size
        if self.retries.condition.accepts and group.lock_type.renew not in self.retries.refused:
            calls = self._options.max_calls_in_flight - self.in_flight
            room = min(_JOINT_BATCHES * self._options.batch_size, calls * size)
            room -= sum(map(_SIZE, entries))
            if room > 0:
                joining = self.joint.take(entries[-1].tick, room)
                if joining and any(other is group for other, _ in joining):
                    own = [entry for other, some in joining if other is group for entry in some]
                    # A loss among those that join may have ended another one.
                    entries = [entry for entry in entries + group.live(own) if entry.state is HELD]
        # A block that is not merged fills more than half of a call. What is due goes before what joins it.
        needed = -(-2 * sum(map(_SIZE, entries)) // size) if len(entries) > 1 else 1
        blocks, leases = ([], in_order(entries)) if needed > calls else parts_of(entries, size)
        for block in blocks:
            self.send(group, block)
        room = max(calls - len(blocks), 0) * size
        for start in range(0, min(room, len(leases)), size):
            self.send(group, leases[start : start + size])
        if left := leases[room:]:
            self.retries.watch(left)
            self._node.connect()
            self.drain()
            self._router.rehome(left)
        for other, some in joining:
            if other is not group and (live := other.live(some)):
                self.renew(other, live)

    def send(
        self, group: LeaseGroup, leases: list[Lease] | Block, *, drained: bool = False, early: bool = False
    ) -> None:
        """Send one batch about HELD or OVERDUE leases that are neither on the wheel nor in the overdue set."""
        if isinstance(leases, Block):
            if not leases.size:
                return  # as below
            leases.move(Event.RENEWAL_SENT)
            nearest = leases.own_deadline
        else:
            if leases[0].state is not HELD and leases[0].state is not OVERDUE:
                return  # a failure in the call before this one has ended all leases of this node
            nearest = mark_sent(leases)
        batch = Batch(self, group, leases, drained, early)
        self.in_flight += 1
        self.retries.in_flight += drained
        self._counters.batches += 1
        # Silence is suspicious after a sixth of the timeout, or after half of the time left if that is less.
        timer = self._timer
        floor, left_s = timer.scale.floor, (nearest - timer.now) / 2
        timer.wheel.schedule(
            batch, floor(timer.now + (group.timeout_s / 6 if group.timeout_s / 6 < left_s else left_s))
        )
        tick = batch.tick
        if tick >= floor(nearest) - 2:
            batch.overdue = True  # too near for a second look: its deadlines are watched from the start
            batch.split()
            self.retries.watch(batch.leases)
        self._node.send(batch)

    # -- overdue leases ----------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """The number of calls about overdue leases that may be sent now."""
        if self.retries.condition.probes:
            return 0 if self.in_flight or self.retries.pausing else 1
        most = min(_DRAIN_CALLS * self._node.calls_for_a_batch, _MOST_DRAIN_CALLS)
        # Due renewals in flight do not count here: with a long round trip there may always be more of them.
        return min(most - self.retries.in_flight, self._options.max_calls_in_flight - self.in_flight)

    def drain(self) -> None:
        """Send overdue leases, nearest deadline first, as far as there is room; each reply makes room for more."""
        if self.retries.waiting:
            for group, leases in self.retries.take(self._room):
                self.send(group, leases, drained=True)

    def _retry(self) -> None:
        # First the others: refused leases may have the nearest deadlines, and would be the only ones that are ever sent.
        self.drain()
        retries = self.retries
        if self._room > 0:
            retries.resting.clear()
            self.drain()
        elif retries.resting:
            retries.pause()

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _retire(self, batch: Batch) -> None:
        """Remove a batch that has been answered, or will not be."""
        self.in_flight -= 1
        self.retries.in_flight -= batch.drained
        self.silent.discard(batch)
        self._timer.wheel.cancel(batch)
        if batch.overdue:
            for lease in batch.leases:
                if lease.state is RENEWING:  # those in other states are there for other reasons
                    self.retries.overdue.discard(lease)
        if batch.early:
            self.checks.answered()
        elif self.checks.progress is BLOCKED:
            self.checks.go_on()

    def confirmed(self, batch: Batch, failed: Sequence[tuple[int, int | ServerError]]) -> None:
        """Confirm the leases of a batch but for the ``failed`` entries."""
        now = self._timer.clock.now()  # not the turn's time: the process may have stood still before the reply was read
        retries = self.retries
        if not self._node.answers_for_all:
            retries.note_answer(not_now=False)
        if retries.condition is not WELL:
            retries.note(Sign.EXECUTED)
        retries.refused.pop(batch.params.lock_type.renew, None)
        self._retire(batch)
        self.shard.confirmed_at = now
        leases = batch.leases
        if failed:
            exceptional = dict(failed)
            self._due_now(batch, [leases[index] for index in exceptional])
            self._some_failed(batch, [(leases[index], status) for index, status in failed])
            leases = [lease for index, lease in enumerate(leases) if index not in exceptional]
        if batch.block is not None and batch.block.size == len(leases):
            self._take_block(batch, batch.block, now)
        else:  # if one has left its block meanwhile, its end, or its part in this confirmation, is its own
            batch.split()
            if self._node.declares:  # one of several nodes: some leases may have moved
                leases = list(filter(self._is_here, leases))
            if leases:
                self._take_confirmation(batch, leases, now)
        if retries.overdue:
            self.drain()
        else:
            retries.backoff.reset()
            if self.outage.since is not None:
                self.outage.look()

    def _take_block(self, batch: Batch, block: Block, now: float) -> None:
        time_left_s = block.confirm(batch.sent_at, now, batch.params.timeout_s)
        if time_left_s is None:
            self._too_late(block.split())
            return
        self._count(time_left_s, block.size)
        if not batch.early:
            self._counters.lag.add(now - self._timer.scale.seconds(block.tick), block.size)
        if batch.early or self._is_punctual(batch, block.tick):
            self._go_on(block, block.tick)
        else:
            self._reschedule(block.split(), batch)

    def _count(self, time_left_s: float, renewed: int) -> None:
        counters = self._counters
        counters.time_left_min_s = min(counters.time_left_min_s, time_left_s)
        counters.time_left.add(time_left_s, renewed)
        counters.renewed += renewed

    def _take_confirmation(self, batch: Batch, leases: Sequence[Lease], now: float) -> None:
        result = confirm_all(leases, batch.sent_at, now, batch.params.timeout_s)
        counters, seconds = self._counters, self._timer.scale.seconds
        if renewed := len(result.kept) + len(result.limited):
            self._count(result.time_left_s, renewed)
        for kept in (result.kept, result.limited):
            if not kept:
                continue
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

    def _reschedule(self, kept: Sequence[Lease], batch: Batch) -> None:
        """Put confirmed leases on the wheel again, each one interval after it was due."""
        wheel, group, due = self._timer.wheel, batch.params, kept[0].tick
        punctual = self._is_punctual(batch, due)
        if punctual and not batch.drained and belong_together(kept):
            self._go_on(Block(kept), due)
        elif (punctual or batch.early) and kept[0].limits is None:
            for tick in wheel.rearm(kept, group.interval_ticks):
                self.joint.note(group, tick)
        else:
            seconds = self._timer.scale.seconds
            for lease in kept:
                group_of(lease).schedule(lease, seconds(lease.tick) if punctual else batch.sent_at)

    def _is_punctual(self, batch: Batch, tick: int) -> bool:
        """Return False for leases that were due long ago: one interval later, they would be due at once."""
        return not batch.early and self._timer.wheel.now - tick <= max(batch.params.interval_ticks // 4, 1)

    def _go_on(self, block: Block, due: int) -> None:
        """Put a block on the wheel, one interval after it was ``due``."""
        group = group_of(block)
        self._timer.wheel.schedule(block, due + group.interval_ticks)
        self.joint.note(group, block.tick)

    def _too_late(self, leases: Sequence[Lease]) -> None:
        """End leases whose confirmation came after their deadline, and release them: their keys are alive."""
        self.table.mark_lost([lease for lease in leases if lease.state is RENEWING])
        lost = [lease for lease in leases if lease.state is State.LOST]
        if lost:
            self.shard.clean_up(lost)

    def _some_failed(self, batch: Batch, failed: Sequence[tuple[Lease, int | ServerError]]) -> None:
        """Deal with the entries of a batch that were not renewed, unless their leases have ended meanwhile."""
        # A node answers a call that declares its keys with MOVED, and without a cluster there is no other node.
        may_be_misrouted = self._node.declares and not batch.declared
        gone: list[Lease] = []
        taken: list[Lease] = []
        unknown: list[Lease] = []
        misrouted: list[Lease] = []
        errors: list[ServerError] = []
        for lease, status in failed:
            if lease.state is not RENEWING or not self._is_here(lease):
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
            self._router.refused(self._node, errors)
            self.outage.begin(errors[0] if errors else None)
            self._counters.unknown += len(unknown)
            self.retries.watch(unknown)
            self.retries.defer(unknown)

    def _send_alone(self, misrouted: Sequence[Lease]) -> None:
        """Send a batch for each OVERDUE lease that the node does not own: its keys are declared, so the reply is MOVED."""
        self._router.refresh()
        for lease in self._router.rehome(misrouted):
            self.send(group_of(lease), [lease], drained=True)

    def deferred(self, batch: Batch) -> None:
        """Retry a batch of one lease after a pause: it was refused for a reason that concerns its slot alone."""
        self.interrupted(batch)
        self.retries.defer([lease for lease in batch.leases if lease.state is OVERDUE and self._is_here(lease)])

    def interrupted(self, batch: Batch) -> None:
        """Retire a batch that will get no reply; its leases become overdue."""
        self._retire(batch)
        # A lease that has moved meanwhile is renewed by another node, and that renewal is not in doubt.
        unknown = [lease for lease in batch.leases if lease.state is RENEWING and self._is_here(lease)]
        self._due_now(batch, unknown)
        self._counters.unknown += 0 if batch.silent else len(unknown)
        for lease in unknown:
            lease.transition(Event.OUTCOME_UNKNOWN)
        self.retries.watch(unknown)
        self._router.rehome(unknown)
        if self.retries.condition.probes:
            self.retries.pause()  # this may have been the probe

    def _is_here(self, lease: Lease) -> bool:
        return group_of(lease).renewer is self.shard

    def _due_now(self, batch: Batch, leases: Iterable[Lease]) -> None:
        """Count the lag of leases whose early check has failed from now: they were not due before."""
        if batch.early:
            for lease in leases:
                lease.tick = self._timer.wheel.now

    def drop_misrouted(self) -> None:
        """Migrate the leases of silent batches that live on other nodes by now, without waiting for the reply."""
        for batch in tuple(self.silent):
            for lease in batch.leases:
                if lease.state is RENEWING and self._is_here(lease):
                    home = self._router.shard_of(lease.key)
                    if home is not self.shard:
                        self.retries.overdue.discard(lease)
                        lease.transition(Event.OUTCOME_UNKNOWN)
                        self._router.migrate(lease, home)
