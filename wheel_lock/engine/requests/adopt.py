"""Adopt: the request that takes over an exported lease, and many of them.

One script checks the exporter's token and replaces it with a new one. So a text works once, however many copies there are,
and no command of the exporter that is still in flight can affect the adopted lease.
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
from wheel_lock.engine.requests.bulk_operations import release_unwanted
from wheel_lock.errors import (
    InvalidHandoff,
    LockLost,
    LockNotAcquired,
    LockTimeout,
    LockUnavailable,
    copied,
    internal_error,
    quoted,
)
from wheel_lock.lease import Lease
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

    The caller hands over the next part of them when the one before has been answered. Timer's thread only, but for the
    constructor.

    Attributes:
        errors: The error of each lease that was not granted.
    """

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self.errors: dict[Lease, Exception] = {}
        self._future: Future[None] = Future(noop)  # of the latest part
        self._in_flight: dict[Lease, Adopt] = {}
        self._granted: list[Lease] = []
        self._silent: dict[Node, Exception] = {}
        self._given_up = False

    def begin(self, adoptions: Sequence[Adoption], future: Future[None]) -> None:
        """Adopt a part of the leases; complete ``future`` when each of them is granted or has failed."""
        self._future = future
        router = self.table.router
        if router.known or self.table.state.closed:
            self._send(adoptions)
        else:
            router.when_known(partial(guarded, self, self._send, adoptions))

    def _send(self, adoptions: Sequence[Adoption]) -> None:
        if self._given_up:  # while the slot map was waited for
            self.table.reject([lease for lease, _, _ in adoptions], False)
            return
        for lease, options, handoff in adoptions:
            self.table.router.assign(lease)
            error = self._silent.get(acquiring_node_of(lease))
            if error is None:
                answered: Future[bool] = Future(partial(guarded, self, self._answered, lease))
                self._in_flight[lease] = Adopt(self.table, lease, options, handoff, answered)
            else:
                self.table.reject([lease], False)
                self.errors[lease] = copied(error)
        for request in list(self._in_flight.values()):
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
        if not self._in_flight:
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
        self.give_up()
        self._future.set_exception(internal_error(error, None))


def adopted_too_late(name: str | bytes) -> LockNotAcquired:
    """Return the error for the caller of an adoption that was granted too late to be held, and is released."""
    return LockNotAcquired(f"The lock {quoted(name)} was adopted too late", name)
