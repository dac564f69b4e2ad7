"""Swap: replace a held lease by another one, without a gap in which another owner could acquire the lock.

A caller that is interrupted keeps the swap and its outcome: so it may be begun twice, and the new lease may be released
before the server has confirmed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import LeaseRequest
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.engine.requests.release import release
from wheel_lock.errors import LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command


class Swap(LeaseRequest):
    """Replace a held lease by another one. Its future receives None when the new one is held, or the error.

    The old lease is not valid from the moment the swap is sent. If the outcome is unknown both leases end, as after a
    release with an unknown outcome, and both are cleaned up. The old lease's deadline limits the time of the swap: its loss
    is reported by then.

    Attributes:
        begun: True after the first ``begin``.
        lease: The held lease.
        new: The lease that replaces it; if it never does, its ``loss`` is the reason for which the old one was lost.
    """

    __slots__ = ("_options", "_releases", "begun", "new")

    def __init__(self, table: LeaseTable, lease: Lease, new: Lease, options: LockOptions, future: Future[None]) -> None:
        super().__init__(table, lease, future)
        self._options = options
        self.begun: bool = False
        self._releases: list[Future[None]] = []
        self.new: Lease = new

    def begin(self) -> None:
        """Send the swap if the old lease is still held. No effect the second time, after an interruption."""
        if self.begun or self.finished:
            return
        self.begun = True
        error = self.table.begin_release(self.lease)
        if error is None:
            self.table.swaps[self.new] = self
            self.table.acquiring += 1  # in place of the old lease, which counts no more
            self.start()
        else:
            self.finished = True
            self.table.reject([self.new], False)
            self.new.loss = self.lease.loss
            self._fail(error)

    def start(self) -> None:
        """Send the swap. Its time limit is the old lease's deadline, if that is nearer: a tick early, as for any loss."""
        left_s = self.lease.deadline - self.timer.scale.tick_s - self.timer.now - self.node.expected_delay_s
        self.limit_s: float = min(self.limit_s, max(left_s, 0.0))
        super().start()

    def release(self, future: Future[None]) -> None:
        """Release the new lease as soon as the server has confirmed it."""
        self._releases.append(future)

    def finish(self) -> None:
        super().finish()
        if self.table.swaps.pop(self.new, None) is not None:
            self.table.acquiring = max(self.table.acquiring - 1, 0)  # 0 after a failure

    @property
    def leases(self) -> Sequence[Lease]:
        return self.lease, self.new

    def may_grant(self) -> Sequence[Lease]:
        return (self.new,)

    def call(self) -> Command:
        params = group_of(self.new)
        return params.lock_type.adopt(self.new, self.lease.token, params.timeout_ms)

    def value_reply(self, reply: Reply) -> None:
        reason = group_of(self.new).lock_type.parse_adopt(reply)
        if self.finished:
            return  # the clean-ups of both follow on this connection
        self.finish()
        table = self.table
        # A confirmation counts only before the deadline, also if the process was stopped meanwhile.
        in_time = self.timer.clock.now() < self.lease.deadline
        if reason is None and in_time and table.grant([self.new], self._remaining_options(), self.sent_at):
            table.release_done([self.lease])
            table.listener.ended(self.lease)
            self._future.set_result(None)
            for future in self._releases:
                release(table, self.new, future)
            return
        table.reject([self.new], reason is None)
        if reason is None:
            self._end_unconfirmed()
        else:
            self._lose(reason)
        self._fail(self.lease.lost_error())

    def _remaining_options(self) -> LockOptions:
        """Return the options with what is left of the old lease's limits."""
        options, limits = self._options, self.lease.limits
        if limits is not None and options.max_hold_s is not None:
            options = replace(options, max_hold_s=limits.hold_until - self.sent_at)
        if limits is not None and options.max_renewals is not None:
            options = replace(options, max_renewals=max(options.max_renewals - self.lease.renewals, 0))
        return options

    def failed(self, error: WheelLockError) -> None:
        self._end(self.maybe_executed)
        self._fail(error)

    def _fail(self, error: WheelLockError) -> None:
        """Complete all futures with ``error``."""
        self._future.set_exception(error)
        for future in self._releases:
            future.set_exception(error)

    def _end(self, clean_up: bool) -> None:
        """End both leases; with ``clean_up`` if the server may have granted the new one."""
        self.table.reject([self.new], clean_up)
        self._end_unconfirmed()
        self.table.clean_up([self.lease])

    def _end_unconfirmed(self) -> None:
        """End the old lease, which the new one may have replaced, but not in time."""
        if self._releases:
            self.table.release_unknown([self.lease])  # the caller has released it, so it is not reported as lost
        else:
            self._lose(LossReason.NOT_CONFIRMED)

    def _lose(self, reason: LossReason) -> None:
        """Mark the old lease lost. A caller that does not wait finds the reason in the new lease, set before the report."""
        self.new.loss = self.new.loss or self.lease.loss or reason
        self.table.mark_lost([self.lease], reason)

    def crashed(self, error: Exception) -> None:
        if self.new.state > EXTENDING:
            # The future does not reach a caller that was interrupted; the report of a loss does.
            self._lose(LossReason.INTERNAL_ERROR)
        super().crashed(error)

    def give_up(self) -> None:
        """End both leases: the caller has stopped waiting. Pending releases of the new one fail."""
        if not self.finished:
            self.finish()
            self._end(self.maybe_executed)
            self._fail(self.lease.lost_error())
        elif self.new.state <= EXTENDING:
            release_many(self.table, [self.new], Future(noop))
