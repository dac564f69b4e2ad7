"""Swap: another lease in the place of a held one, without a gap in which somebody else could come in.

Its caller may be interrupted at any moment, and then still has what comes of it: so it may be begun twice, and the new
lease may be released before the server has confirmed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest, node_of
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.engine.requests.release import release
from wheel_lock.errors import LockLost, LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command


class Swap(CallerRequest):
    """Put another lease in the place of a held one. Completes when the new one is held.

    From the moment it is sent nobody believes in the old lease any more: the server may have let it go. So where the
    outcome is not known both are over, as after a release of which that is so, and both are cleaned up.

    Attributes:
        begun: Whether it has been begun.
        lease: What is held.
        new: What takes its place. Where it never does, it says for what reason the old one was lost.
    """

    __slots__ = ("_future", "_options", "_releases", "begun", "lease", "new")

    def __init__(self, table: LeaseTable, lease: Lease, new: Lease, options: LockOptions, future: Future[None]) -> None:
        super().__init__(table, node_of(lease), lease.name, table.state.options.response_timeout_s)
        self._future = future
        self._options = options
        self.begun = False
        self._releases: list[Future[None]] = []
        self.lease = lease
        self.new = new

    def begin(self) -> None:
        """Send it, if the old lease is still held. A second time it does nothing: who was interrupted asks for it again."""
        if self.begun or self.finished:
            return
        self.begun = True
        error = self.table.begin_release(self.lease)
        if error is None:
            self.table.swaps[self.new] = self
            self.start()
        else:
            self.finished = True
            self.table.reject([self.new], False)
            self.new.loss = self.lease.loss
            self._fail(error)

    def release(self, future: Future[None]) -> None:
        """Release the new lease as soon as the server has confirmed it: nothing can be said of it before."""
        self._releases.append(future)

    def finish(self) -> None:
        super().finish()
        self.table.swaps.pop(self.new, None)

    @property
    def leases(self) -> Sequence[Lease]:
        return self.lease, self.new

    def call(self) -> Command:
        params = group_of(self.new)
        return params.lock_type.adopt(self.new, self.lease.token, params.timeout_ms)

    def value_reply(self, reply: Reply) -> None:
        reason = group_of(self.new).lock_type.parse_adopt(reply)
        if self.finished:
            return  # both are being cleaned up, behind this
        self.finish()
        table = self.table
        if reason is None and table.grant([self.new], self._terms(), self.sent_at):
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
        self._fail(self._lost())

    def _terms(self) -> LockOptions:
        """The options, with what is left of the old lease's limits."""
        options, limits = self._options, self.lease.limits
        if limits is not None and options.max_hold_s is not None:
            options = replace(options, max_hold_s=limits.hold_until - self.sent_at)
        if limits is not None and options.max_renewals is not None:
            options = replace(options, max_renewals=max(options.max_renewals - self.lease.renewals, 0))
        return options

    def failed(self, error: WheelLockError) -> None:
        self._end(self.executions > 0)
        self._fail(error)

    def _fail(self, error: WheelLockError) -> None:
        """Tell whoever waits."""
        self._future.set_exception(error)
        for future in self._releases:
            future.set_exception(error)

    def _end(self, clean_up: bool) -> None:
        """End both; ``clean_up`` where the new one may be there."""
        self.table.reject([self.new], clean_up)
        self._end_unconfirmed()
        self.table.clean_up([self.lease])

    def _end_unconfirmed(self) -> None:
        """End the old one: it is not known, or too late, whether the new one has taken its place."""
        if self._releases:
            self.table.release_unknown([self.lease])  # nothing is lost for who has let go of it
        else:
            self._lose(LossReason.NOT_CONFIRMED)

    def _lost(self) -> LockLost:
        return LockLost(self.lease.name, self.lease.loss or LossReason.NOT_CONFIRMED)

    def _lose(self, reason: LossReason) -> None:
        """Tell that it is lost. Whoever does not wait for this looks at the new lease, perhaps when he is told."""
        self.new.loss = self.new.loss or self.lease.loss or reason
        self.table.mark_lost([self.lease], reason)

    def crashed(self, error: Exception) -> None:
        if self.new.state > EXTENDING:
            # Else only who waits for this would hear of it, and whoever was interrupted does not.
            self._lose(LossReason.INTERNAL_ERROR)
        super().crashed(error)

    def give_up(self) -> None:
        """The caller never hears: keep neither. Whoever waits to release the new one is told that it never came."""
        if not self.finished:
            self.finish()
            self._end(self.attempts > 0)
            self._fail(self._lost())
        elif self.new.state <= EXTENDING:
            release_many(self.table, [self.new], Future(noop))
