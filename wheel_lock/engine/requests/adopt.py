"""Hand-over: the text that carries a lease from one process to another, and the request that takes it over.

The adopter puts a token of its own in the place of the exporter's, in one script that checks the latter. So a text works
once, whoever has a copy of it, and nothing that the exporter still has under way can touch the adopted lease.
"""

from __future__ import annotations

import time
from dataclasses import replace

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.errors import InvalidHandoff, LockLost, LockTimeout, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types.replies import NO_FENCE, OTHER_FENCE
from wheel_lock.options import LockOptions
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command


class Adopt(Acquire):
    """Take over a lease that somebody has exported. Completes with True, or fails with why it is not to be had."""

    __slots__ = ("_handoff",)

    may_wait = False  # it is about a lease in hand: whoever gives it up has it released

    def __init__(
        self, table: LeaseTable, lease: Lease, options: LockOptions, handoff: Handoff, future: Future[bool]
    ) -> None:
        super().__init__(table, (lease,), options, future)
        self._handoff = handoff

    def _call(self, *, again: bool) -> Command:
        params = group_of(self.lease)
        return params.lock_type.adopt(self.lease, self._handoff.token, params.timeout_ms, self._handoff.fence)

    def value_reply(self, reply: Reply) -> None:
        if reply == OTHER_FENCE and self._handoff.fence is not None:
            self._other_fence()
            return
        reason = group_of(self.lease).lock_type.parse_adopt(reply)
        if self.finished:
            return
        self.finish()
        if reason is None:
            self.take(self._handoff.fence or NO_FENCE)
        else:
            self.table.reject([self.lease], False)
            self.future.set_exception(LockLost(self.lease.name, reason))

    def _other_fence(self) -> None:
        if self.finished:
            return
        self.finish()
        self.table.reject([self.lease], False)
        name = self._handoff.name
        self.future.set_exception(
            InvalidHandoff(f"The fence in the text is not the one that the lock {quoted(name)} has", name)
        )

    def take(self, fence: int) -> None:
        until = self._handoff.hold_until
        if until is not None:
            # What is left is known now. The text may have been read long ago, where connecting took its time.
            left_s = until - time.time() + self.timer.clock.now() - self.sent_at
            if left_s <= 0:
                self._reject(True)
                return
            self._options = replace(self._options, max_hold_s=left_s)
        super().take(fence)

    def end_late(self, error: LockTimeout | None) -> None:
        super().end_late(None)  # an adoption that comes too late for any reason is no adoption
