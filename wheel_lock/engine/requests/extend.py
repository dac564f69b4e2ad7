"""Extend: the one request that changes a time-to-live by the caller's wish, and so the one that may shorten it."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest, node_of
from wheel_lock.errors import LockLost, LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Event, Lease, State, local_deadline
from wheel_lock.options import too_long
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError


class Extend(CallerRequest):
    """Change the time-to-live of one lease. Completes when the server has, or fails with why it could not."""

    __slots__ = ("_future", "_replace", "_time_ms", "lease")

    def __init__(self, table: LeaseTable, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        super().__init__(table, node_of(lease), lease.name, table.state.options.response_timeout_s)
        self._future = future
        self.lease = lease
        self._time_ms = time_ms
        self._replace = replace

    def start(self) -> None:
        """Take the lease off the wheel, and send it."""
        lease, renewer = self.lease, group_of(self.lease).renewer
        renewer.untrack(lease)
        if self._replace:
            # The server may shorten it at once, so from here on the holder must believe no longer than that.
            lease.reset_deadline(min(lease.deadline, local_deadline(self.timer.now, self._time_ms / 1000)))
        now = self.timer.now
        lease.max_expiry = max(lease.max_expiry, max(lease.deadline, now) + self._time_ms / 1000)
        lease.transition(Event.EXTEND)
        renewer.watch_overdue([lease])
        super().start()

    @property
    def awaited(self) -> bool:
        return not self.finished or self.lease.state is EXTENDING

    @property
    def leases(self) -> Sequence[Lease]:
        return (self.lease,)

    def call(self) -> Command:
        return group_of(self.lease).lock_type.extend(self.lease, self._time_ms, replace=self._replace)

    def value_reply(self, reply: Reply) -> None:
        # Also when nobody waits any more: the lease does, because its renewals must not overtake this reply.
        outcome = group_of(self.lease).lock_type.parse_extend(reply)
        if outcome is None and self._replace:
            raise MalformedReply("a time-to-live that is allowed is not too long")
        self.finish()
        self._extended(outcome)

    def _extended(self, outcome: int | LossReason | None) -> None:
        """Handle the reply: the new time-to-live in ms, why there is none, or None if it is unchanged."""
        lease = self.lease
        if lease.state is EXTENDING:
            if isinstance(outcome, LossReason):
                self.table.mark_lost([lease], outcome)
            elif not lease.is_valid(self.timer.clock.now()):
                self.table.mark_lost([lease])
            elif outcome is None:
                self._unextended()
                self._future.set_exception(too_long(self._time_ms / 1000, "what the server says"))
                return
            else:
                renewer = group_of(lease).renewer
                renewer.untrack(lease)
                deadline = local_deadline(self.sent_at, outcome / 1000)
                # Where there was nothing left to add to, the key had lost its expiry, and has no more than this now.
                exact = self._replace or outcome <= self._time_ms
                lease.reset_deadline(deadline if exact else max(deadline, lease.deadline))
                lease.transition(Event.CONFIRMED)
                renewer.schedule(lease, self.sent_at)
                self._future.set_result(None)
                return
        if lease.state is State.LOST and not isinstance(outcome, LossReason):
            self.table.clean_up([lease])
        self._future.set_exception(LockLost(lease.name, lease.loss or LossReason.NOT_CONFIRMED))

    def _unextended(self) -> None:
        """Whether the server has changed the time-to-live is not known: believe as long as before, and go on."""
        lease, renewer = self.lease, group_of(self.lease).renewer
        if lease.state is not EXTENDING:
            return
        renewer.untrack(lease)
        if renewer.needs_none(lease):
            lease.transition(Event.CONFIRMED)
            renewer.schedule(lease, self.timer.now)
        else:
            lease.transition(Event.OUTCOME_UNKNOWN)
            renewer.watch_overdue([lease])
            renewer.drain()

    def on_connection_lost(self, error: Exception) -> None:
        # Adding twice would be adding too much, so a caller who adds must decide whether to try again.
        if self._replace and not self.finished and self.lease.state is EXTENDING:
            self.node.send(self)
        else:
            self._unextended()
            self.on_unavailable(error)

    def error_reply(self, error: ServerError) -> None:
        if self.table.router.redirect(self, error):
            return
        if not self.goes_to_another_master(error):
            self._unextended()
        super().error_reply(error)

    def on_unavailable(self, error: Exception) -> None:
        self._unextended()
        super().on_unavailable(error)

    def resend(self) -> None:
        lease = self.lease
        if lease.state is EXTENDING and not self.finished:
            super().resend()
            return
        # Nobody waits any more, or the lease has ended: nothing more is sent for it.
        self._unextended()
        if not self.finished:
            self.finish()
            self.failed(LockLost(lease.name, lease.loss or LossReason.NOT_CONFIRMED))

    def failed(self, error: WheelLockError) -> None:
        self._future.set_exception(error)
