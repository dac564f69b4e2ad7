"""What can share a renewal call, and one such call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from wheel_lock.engine.interfaces import LeaseGroup, Shard
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.outages import Outage
from wheel_lock.engine.renewal.verification import Verification
from wheel_lock.engine.requests.base import Request, batch_call
from wheel_lock.lease import HELD, RENEWING, Event, Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.protocol.resp import Reply, exceptions, int_arg
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_NOW, ServerError

_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: its multiples spread evenly for any number of leases (Knuth 6.4)


class BatchOwner(Shard, Protocol):
    """What groups and batches know of their renewer."""

    table: LeaseTable
    outage: Outage

    def partition_due(self, failed: Iterable[Lease], now: float) -> list[Lease]: ...
    def renew(self, group: LeaseGroup, leases: list[Lease]) -> None: ...
    def heard(self, *, not_now: bool) -> None: ...
    def confirmed(self, batch: Batch, failed: Sequence[tuple[int, int | ServerError]]) -> None: ...
    def failed(self, batch: Batch, error: ServerError) -> None: ...
    def refused_alone(self, batch: Batch, error: ServerError) -> None: ...
    def interrupted(self, batch: Batch) -> None: ...
    def moved(self, batch: Batch, home: Shard) -> None: ...
    def batch_deferred(self, batch: Batch) -> None: ...
    def vanished(self, batch: Batch) -> None: ...
    def batch_timed_out(self, batch: Batch) -> None:
        """Suspect the connection: a batch has had no reply for too long."""
        ...


class RenewalGroup:
    """Leases of one kind, timeout and renewal interval on one node: what can share a script call."""

    __slots__ = ("_phase", "alive", "interval_ticks", "lock_type", "renewer", "timeout_ms", "timeout_s", "ttl")

    def __init__(
        self, renewer: BatchOwner, lock_type: LockType, timeout_s: float, timeout_ms: int, interval_ticks: int
    ) -> None:
        self.renewer = renewer
        self.lock_type = lock_type
        self.timeout_s = timeout_s
        self.timeout_ms = timeout_ms
        self.interval_ticks = interval_ticks  # ticks between renewals
        self.ttl = int_arg(timeout_ms)
        self.alive = True
        self._phase = 0

    def next_phase(self) -> int:
        """How many ticks before its time a first renewal comes where many would come at once.

        Leases acquired together would be due together for ever; so each, or each few, get a phase of their own.
        """
        self._phase = (self._phase + _GOLDEN) & 0xFFFFFFFF
        return self._phase * (self.interval_ticks - self.interval_ticks // 8) >> 32

    def due(self, entries: list[Lease], now: float) -> None:
        """Renew ``entries``; losses come first. Runs for every renewal, hence the plain loop."""
        live: list[Lease] = []
        failed: list[Lease] = []
        keep, held = live.append, HELD
        now = self.renewer.table.timer.clock.now()  # what went before in this turn may have taken long
        for lease in entries:
            # A lease that came due in this step may have been released, moved or lost by what was called before.
            if lease.state is held and lease.deadline > now and lease.limits is None and not lease.owner.ended:
                keep(lease)
            else:
                failed.append(lease)
        if failed:
            live += self.renewer.partition_due(failed, now)
            live = [lease for lease in live if lease.state is held]  # a loss may have ended another one, too
        if live:
            self.renewer.renew(self, live)

    def illegal(self, lease: Lease, event: Event) -> None:
        self.renewer.table.mark_illegal(lease, event)

    def domains(self, entries: list[Lease]) -> tuple[BatchOwner]:
        """Return what a failure costs: which of the leases of the node are watched is in doubt."""
        return (self.renewer,)


class Batch(Request):
    """One renewal call about many leases of one group."""

    __slots__ = ("_renewer", "drained", "leases", "overdue", "params", "silent", "verification")

    leases: Sequence[Lease]

    def __init__(
        self,
        renewer: BatchOwner,
        params: LeaseGroup,
        leases: Sequence[Lease],
        drained: bool,
        verification: Verification | None,
    ) -> None:
        super().__init__(renewer.table, renewer.node)
        self._renewer = renewer
        self.params = params
        self.leases = leases
        self.verification = verification  # what it is a part of, where its leases were not due
        self.drained = drained  # from the overdue set, in order of deadline and not of due tick
        self.overdue = False  # its leases are watched in the overdue set
        self.silent = False  # it was not answered when it should have been

    def redirect_to(self, shard: Shard) -> None:
        self._renewer.moved(self, shard)

    def retry_after(self, pause_s: float, *, maybe_executed: bool = False) -> bool:
        # Its renewer decides when; a whole batch was refused for a reason that concerns the node.
        if len(self.leases) == 1:
            self._renewer.batch_deferred(self)
        return len(self.leases) == 1

    def call(self) -> Command:
        return batch_call(self.params.lock_type.renew, self.params.lock_type, self.leases, self.params.ttl)

    @property
    def wanted(self) -> bool:
        return any(lease.state is RENEWING for lease in self.leases)

    @property
    def awaited(self) -> bool:
        return self.wanted

    def resend(self) -> None:
        # Nothing may be sent for a lease that has been released or lost while the first try was under way.
        self.leases = [lease for lease in self.leases if lease.state is RENEWING]
        if self.leases:
            self.node.send(self)
        else:
            self._renewer.vanished(self)

    def value_reply(self, reply: Reply) -> None:
        failed = exceptions(reply, len(self.leases))
        self._renewer.heard(not_now=False)
        self._renewer.confirmed(self, failed)

    def error_reply(self, error: ServerError) -> None:
        self._renewer.heard(not_now=error.code in NOT_NOW)
        if self.table.router.redirect(self, error):
            if error.code not in ("MOVED", "ASK"):
                self._renewer.outage.begin(error)
            return
        if self.node.note_keys_required(error, self.declared):
            self._renewer.interrupted(self)
            self._renewer.drain()
        elif self.node.single_key_mode and len(self.leases) == 1:
            self._renewer.refused_alone(self, error)
        else:
            self._renewer.failed(self, error)

    def crashed(self, error: Exception) -> None:
        self.timer.wheel.cancel(self)
        self._renewer.crashed(error)

    def on_connection_lost(self, error: Exception) -> None:
        self._renewer.interrupted(self)

    def on_unavailable(self, error: Exception) -> None:
        self._renewer.interrupted(self)

    def on_timeout(self, now: float) -> None:
        self._renewer.batch_timed_out(self)
