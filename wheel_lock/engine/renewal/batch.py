"""Renewal groups, and batches: one batch is one renewal call about leases of one group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from wheel_lock.engine.interfaces import Later, LeaseGroup, Shard
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.outages import Outage
from wheel_lock.engine.requests.base import Request, batch_call
from wheel_lock.engine.requests.execution import BY_SHA1
from wheel_lock.lease import HELD, RENEWING, Event, Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.protocol.resp import Reply, exceptions, int_arg
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_NOW, ServerError

_GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: its multiples spread evenly for any number of leases (Knuth 6.4)


class BatchOwner(Shard, Protocol):
    """The renewer, as its groups and batches see it."""

    table: LeaseTable
    outage: Outage

    def partition_due(self, entries: Iterable[Lease], now: float) -> list[Lease]: ...
    def send(self, group: LeaseGroup, leases: list[Lease], *, drained: bool = False, early: bool = False) -> None: ...
    def renew(self, group: LeaseGroup, leases: list[Lease]) -> None: ...
    def note_answer(self, *, not_now: bool) -> None: ...
    def confirmed(self, batch: Batch, failed: Sequence[tuple[int, int | ServerError]]) -> None: ...
    def failed(self, batch: Batch, error: ServerError) -> None: ...
    def interrupted(self, batch: Batch) -> None: ...
    def moved(self, batch: Batch, home: Shard) -> None: ...
    def batch_deferred(self, batch: Batch) -> None: ...
    def batch_emptied(self, batch: Batch) -> None: ...
    def batch_timed_out(self, batch: Batch) -> None: ...


class RenewalGroup:
    """Leases of one lock type, timeout and renewal interval on one node: they can share a script call.

    Attributes:
        interval_ticks: The ticks between renewals.
        slack_ticks: By how many ticks a renewal may come early to join others that are due.
    """

    __slots__ = (
        "__weakref__",
        "_phase",
        "alive",
        "interval_ticks",
        "lock_type",
        "renewer",
        "slack_ticks",
        "timeout_ms",
        "timeout_s",
        "ttl",
    )

    def __init__(
        self,
        renewer: BatchOwner,
        lock_type: LockType,
        timeout_s: float,
        timeout_ms: int,
        interval_ticks: int,
        slack_ticks: int,
    ) -> None:
        self.renewer: BatchOwner = renewer
        self.lock_type: LockType = lock_type
        self.timeout_s: float = timeout_s
        self.timeout_ms: int = timeout_ms
        self.interval_ticks: int = interval_ticks
        self.slack_ticks: int = slack_ticks
        self.ttl: bytes = int_arg(timeout_ms)
        self.alive: bool = True
        self._phase = 0

    def next_phase(self) -> int:
        """Return by how many ticks a first renewal comes earlier, where many would be due at one tick.

        Leases that were acquired together would be due together for ever, so each, or each few, get a phase of their own.
        """
        self._phase = (self._phase + _GOLDEN) & 0xFFFFFFFF
        return self._phase * (self.interval_ticks - self.interval_ticks // 8) >> 32

    def due(self, entries: list[Lease], now: float) -> None:
        """Renew ``entries``, and leases that join them."""
        if live := self.live(entries):
            self.renewer.renew(self, live)

    def live(self, entries: list[Lease]) -> list[Lease]:
        """Return those of the due ``entries`` to renew; losses come first. Runs for every renewal, hence the plain loop."""
        held = HELD
        now = self.renewer.table.timer.clock.now()  # the calls before this one in the turn may have taken long
        for lease in entries:
            # A call before this one in the same turn may have released, moved or lost a lease.
            if lease.state is not held or lease.deadline <= now or lease.limits is not None or lease.owner.ended:
                break
        else:
            return entries
        live: list[Lease] = []
        others: list[Lease] = []
        for lease in entries:
            plain = lease.state is held and lease.deadline > now and lease.limits is None and not lease.owner.ended
            (live if plain else others).append(lease)
        live += self.renewer.partition_due(others, now)
        return [lease for lease in live if lease.state is held]  # a loss may have ended another one, too

    def illegal(self, lease: Lease, event: Event) -> None:
        self.renewer.table.mark_illegal(lease, event)

    def domains(self, entries: list[Lease]) -> tuple[BatchOwner]:
        return (self.renewer,)  # after a failure it is unknown which leases of the node are watched


class Batch(Request):
    """One renewal call about many leases of one group.

    Attributes:
        params: The group of the leases when the batch was made.
        drained: True if the leases come from the overdue set, in order of deadline and not of due tick.
        early: True if it checks leases that were not due.
        overdue: True if the leases are watched in the overdue set, too.
        silent: True if the batch was not answered within its time limit.
    """

    __slots__ = ("_renewer", "drained", "early", "leases", "overdue", "params", "silent")

    leases: Sequence[Lease]
    may_wait = False

    def __init__(
        self,
        renewer: BatchOwner,
        params: LeaseGroup,
        leases: Sequence[Lease],
        drained: bool,
        early: bool,
    ) -> None:
        super().__init__(renewer.table, renewer.node)
        self._renewer = renewer
        self.params: LeaseGroup = params
        self.leases = leases
        self.drained: bool = drained
        self.early: bool = early
        self.overdue: bool = False
        self.silent: bool = False

    def redirect_to(self, shard: Shard) -> None:
        self._renewer.moved(self, shard)

    def retry(self, later: Later) -> bool:
        # The renewer decides when. A batch of several leases was refused for a reason that concerns the node.
        if len(self.leases) == 1:
            self._renewer.batch_deferred(self)
        return len(self.leases) == 1

    def call(self) -> Command:
        return batch_call(self.params.lock_type.renew, self.params.lock_type, self.leases, self.params.ttl)

    def encode(self, capability: int) -> bytes:
        if self.node.declares:
            return super().encode(capability)
        self.sent_at: float = self.timer.now
        self.sent()
        leases, params = self.leases, self.params
        body = b"".join([params.ttl, *[lease.lease_args for lease in leases]])
        form = params.lock_type.renew.form(capability)
        return form.call(
            0, 1 + params.lock_type.args_per_lease * len(leases), body, use_eval=self.sending is not BY_SHA1
        )

    @property
    def wanted(self) -> bool:
        return any(lease.state is RENEWING for lease in self.leases)

    @property
    def awaited(self) -> bool:
        return self.wanted

    def resend(self) -> None:
        # Nothing may be sent for a lease that has been released or lost since the first try.
        self.leases = [lease for lease in self.leases if lease.state is RENEWING]
        if self.leases:
            self.node.send(self)
        else:
            self._renewer.batch_emptied(self)

    def value_reply(self, reply: Reply) -> None:
        failed = () if reply == [] else exceptions(reply, len(self.leases))
        if self.node.single_key_mode:
            self._renewer.note_answer(not_now=False)
        self._renewer.confirmed(self, failed)

    def error_reply(self, error: ServerError) -> None:
        self._renewer.note_answer(not_now=error.code in NOT_NOW)
        super().error_reply(error)

    def redirect(self, error: ServerError) -> bool:
        redirected = super().redirect(error)
        if redirected and error.code not in ("MOVED", "ASK"):
            self._renewer.outage.begin(error)
        return redirected

    def on_keys_required(self) -> None:
        self._renewer.interrupted(self)
        self._renewer.drain()

    def on_error(self, error: ServerError) -> None:
        self._renewer.failed(self, error)

    def crashed(self, error: Exception) -> None:
        self.timer.wheel.cancel(self)
        self._renewer.crashed(error)

    def on_connection_lost(self, error: Exception) -> None:
        self._renewer.interrupted(self)

    on_unavailable = on_connection_lost

    def on_timeout(self, now: float) -> None:
        self._renewer.batch_timed_out(self)
