"""Extend: the one request that changes a time-to-live to a caller's value, and so the one that may shorten it."""

from __future__ import annotations

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import LeaseRequest
from wheel_lock.errors import LossReason
from wheel_lock.lease import EXTENDING, Event, Lease, State, local_deadline
from wheel_lock.options import too_long
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError


class Extend(LeaseRequest):
    """Prolong the time-to-live of one lease by ``time_ms``, or with ``replace`` set it to that."""

    __slots__ = ("_replace", "_time_ms")

    def __init__(self, table: LeaseTable, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        super().__init__(table, lease, future)
        self._time_ms = time_ms
        self._replace = replace

    def start(self) -> None:
        """Take the lease off the wheel, watch its deadline, and send the request."""
        lease, renewer = self.lease, group_of(self.lease).renewer
        renewer.untrack(lease)
        if self._replace:
            # The server may shorten it at once, so the lease is valid for no longer than that from now on.
            lease.reset_deadline(min(lease.deadline, local_deadline(self.timer.now, self._time_ms / 1000)))
        now = self.timer.now
        lease.max_expiry = max(lease.max_expiry, max(lease.deadline, now) + self._time_ms / 1000)
        lease.transition(Event.EXTEND)
        renewer.watch_overdue([lease])
        super().start()

    @property
    def awaited(self) -> bool:
        return not self.finished or self.lease.state is EXTENDING

    def call(self) -> Command:
        return group_of(self.lease).lock_type.extend(self.lease, self._time_ms, replace=self._replace)

    def encode(self, capability: int) -> bytes:
        if self.lease.state is EXTENDING:
            return super().encode(capability)
        self._drop()  # the lease has ended while this waited for a connection
        return b""

    def value_reply(self, reply: Reply) -> None:
        # Also of a finished request: the lease waits for this reply, because its renewals must not overtake it.
        outcome = group_of(self.lease).lock_type.parse_extend(reply)
        if outcome is None and self._replace:
            raise MalformedReply("a time-to-live that is allowed is not too long")
        self.finish()
        lease = self.lease
        if lease.state is EXTENDING:
            if isinstance(outcome, LossReason):
                self.table.mark_lost([lease], outcome)
            elif not lease.is_valid(self.timer.clock.now()):
                self.table.mark_lost([lease])
            elif outcome is None:  # the sum would be too long, so nothing has changed
                self._end_unextended()
                self._future.set_exception(too_long(self._time_ms / 1000, "what the server says"))
                return
            else:
                renewer = group_of(lease).renewer
                renewer.untrack(lease)
                deadline = local_deadline(self.sent_at, outcome / 1000)
                # If no time was left to add to, the key had lost its expiry, and has exactly this time now.
                exact = self._replace or outcome <= self._time_ms
                lease.reset_deadline(deadline if exact else max(deadline, lease.deadline))
                lease.transition(Event.CONFIRMED)
                group_of(lease).schedule(lease, self.sent_at)
                self._future.set_result(None)
                return
        if lease.state is State.LOST and not isinstance(outcome, LossReason):
            self.table.clean_up([lease])
        self._future.set_exception(lease.lost_error())

    def _end_unextended(self) -> None:
        """Return the lease to its renewals with the same deadline: it was not extended, or the outcome is unknown."""
        lease, renewer = self.lease, group_of(self.lease).renewer
        if lease.state is not EXTENDING:
            return
        renewer.untrack(lease)
        if renewer.lapses_now(lease):
            self.table.mark_lost([lease])  # in the next tick its deadline may have passed
        elif renewer.needs_none(lease):
            lease.transition(Event.CONFIRMED)
            group_of(lease).schedule(lease, self.timer.now)
        else:
            lease.transition(Event.OUTCOME_UNKNOWN)
            renewer.watch_overdue([lease])
            renewer.drain()

    def on_connection_lost(self, error: Exception) -> None:
        # A second addition would add too much, so the caller decides whether to try again.
        if self._replace and not self.finished and self.lease.state is EXTENDING:
            self.node.send(self)
        else:
            self.on_unavailable(error)

    def on_error(self, error: ServerError) -> None:
        self._end_unextended()
        super().on_error(error)

    def on_unavailable(self, error: Exception) -> None:
        self._end_unextended()
        super().on_unavailable(error)

    def resend(self) -> None:
        lease = self.lease
        if lease.state is EXTENDING and not self.finished:
            super().resend()
            return
        # The caller has stopped waiting, or the lease has ended: nothing more is sent for it.
        self._end_unextended()
        self._drop()

    def _drop(self) -> None:
        """End the request unsent, because its lease has ended."""
        if not self.finished:
            self.finish()
            self.failed(self.lease.lost_error())
