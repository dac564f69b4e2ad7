"""Adopt and swap: the requests that take over a lock from another lease, which was exported, or is held here.

One script checks the token of that lease and replaces it with a new one. So an exported text works once, however many
copies there are, and no command for the old lease that is still in flight can affect the new one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import acquiring_node_of, group_of
from wheel_lock.engine.leases import BelowEngine, LeaseTable
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import LeaseRequest
from wheel_lock.engine.requests.bulk_operations import release_many, release_unwanted
from wheel_lock.engine.requests.release import release
from wheel_lock.errors import (
    InvalidHandoff,
    LockLost,
    LockNotAcquired,
    LockTimeout,
    LockUnavailable,
    LossReason,
    WheelLockError,
    copied,
    internal_error,
    quoted,
)
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.replies import NO_FENCE, OTHER_FENCE
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.failures import guarded


class Adopt(Acquire):
    """Take over an exported lease. Its future receives True if it was granted, or the error."""

    __slots__ = ("_handoff",)

    may_wait = False  # as any request about a held lease

    def __init__(
        self, table: LeaseTable, lease: Lease, options: LockOptions, handoff: Handoff, future: Future[bool]
    ) -> None:
        super().__init__(table, (lease,), options, future)
        self._handoff = handoff

    def _call(self, *, again: bool) -> Command:
        params = group_of(self.lease)
        return params.lock_type.adopt(self.lease, self._handoff.token, params.timeout_ms, self._handoff.fence)

    def value_reply(self, reply: Reply) -> None:
        other_fence = reply == OTHER_FENCE and self._handoff.fence is not None
        reason = None if other_fence else group_of(self.lease).lock_type.parse_adopt(reply)
        if self.finished:
            return
        self.finish()
        if other_fence:
            name = self._handoff.name
            text = f"The fence in the text is not the one that the lock {quoted(name)} has"
            self.table.reject([self.lease], False)
            self.future.set_exception(InvalidHandoff(text, name))
        elif reason is None:
            self.take(self._handoff.fence or NO_FENCE)
        else:
            self.table.reject([self.lease], False)
            self.future.set_exception(LockLost(self.lease.name, reason))

    def take(self, fence: int) -> None:
        # Computed now: the text may have been parsed long ago, if connecting has taken long.
        left_s = self._handoff.hold_left_s(time.time() - (self.timer.clock.now() - self.sent_at))
        if left_s is not None:
            if left_s <= 2 * self.timer.scale.tick_s:  # its loss could not be reported in time
                self._reject(True)
                return
            self._options = replace(self._options, max_hold_s=left_s)
        super().take(fence)

    def end_late(self, error: LockTimeout | None) -> None:
        super().end_late(None)  # whatever the reason is, the lease was not adopted


Adoption = tuple[Lease, LockOptions, Handoff]  # the arguments of one Adopt


class AdoptMany(BelowEngine):
    """Take over many exported leases, each by a call of its own. A node that does not answer gets no more calls.

    The caller hands over the next part of them when few are unanswered, so that a silent node delays those of no other.
    Timer's thread only, but for the constructor.

    Attributes:
        errors: The error of each lease that was not granted.
    """

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self.errors: dict[Lease, Exception] = {}
        self._future: Future[None] = Future(noop)  # of the latest part
        self._most = 0  # that may be unanswered when it is completed
        self._failure: Exception | None = None
        self._in_flight: dict[Lease, Adopt] = {}
        self._granted: list[Lease] = []
        self._silent: dict[Node, Exception] = {}
        self._given_up = False

    def begin(self, adoptions: Sequence[Adoption], most: int, future: Future[None]) -> None:
        """Adopt a part of the leases; complete ``future`` when at most ``most`` of all so far are unanswered."""
        self._most, self._future = most, future
        router = self.table.router
        if router.known or self.table.state.closed or not adoptions:
            self._send(adoptions)
        else:
            router.when_known(partial(guarded, self, self._send, adoptions))

    def _send(self, adoptions: Sequence[Adoption]) -> None:
        if self._given_up:
            self.table.reject([lease for lease, _, _ in adoptions], False)
            if self._failure is not None:  # between two parts
                self._future.set_exception(self._failure)
            return
        requests = []
        for lease, options, handoff in adoptions:
            self.table.router.assign(lease)
            error = self._silent.get(acquiring_node_of(lease))
            if error is None:
                answered: Future[bool] = Future(partial(guarded, self, self._answered, lease))
                self._in_flight[lease] = request = Adopt(self.table, lease, options, handoff, answered)
                requests.append(request)
            else:
                self.table.reject([lease], False)
                self.errors[lease] = copied(error)
        for request in requests:  # all are in flight by now: one that is refused at once does not complete the part
            if not request.finished:  # an earlier one has ended the call
                request.begin()
        self._complete_if_done()

    def _answered(self, lease: Lease) -> None:
        request = self._in_flight.pop(lease, None)
        if request is None:
            return
        error = request.future.error
        if isinstance(error, (LockTimeout, LockUnavailable)):
            self._silent[request.node] = error
        if error is not None:
            self.errors[lease] = error
        elif request.future.result():
            self._granted.append(lease)
        else:
            self.errors[lease] = adopted_too_late(lease.name)
        self._complete_if_done()

    def _complete_if_done(self) -> None:
        if len(self._in_flight) <= self._most:
            self._future.set_result(None)

    def give_up(self) -> None:
        """Release what was adopted, or may have been: the caller has stopped waiting. The other texts can still be used."""
        self._given_up = True
        requests = list(self._in_flight.values())
        self._in_flight.clear()
        for request in requests:
            request.give_up()
        granted, self._granted = self._granted, []
        release_unwanted(self.table, granted)

    def crashed(self, error: Exception) -> None:
        """Fail the call, and undo it."""
        self._failure = internal_error(error, None)
        self.give_up()
        self._future.set_exception(self._failure)


def adopted_too_late(name: str | bytes) -> LockNotAcquired:
    """Return the error for the caller of an adoption that was granted too late to be held, and is released."""
    return LockNotAcquired(f"The lock {quoted(name)} was adopted too late", name)


class Swap(LeaseRequest):
    """Replace a held lease by another one, without a gap in which another owner could acquire the lock.

    Its future receives None when the new one is held, or the error. A caller that is interrupted keeps the swap and its
    outcome: so it may be begun twice, and the new lease may be released before the server has confirmed it.

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
        self._end()
        self._fail(error)

    def _fail(self, error: WheelLockError) -> None:
        """Complete all futures with ``error``."""
        self._future.set_exception(error)
        for future in self._releases:
            future.set_exception(error)

    def _end(self) -> None:
        """End both leases, of which the server may have granted the new one."""
        self.table.reject([self.new], self.maybe_executed)
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
            self._end()
            self._fail(self.lease.lost_error())
        elif self.new.state <= EXTENDING:
            release_many(self.table, [self.new], Future(noop))
