"""Adopt: the request that takes over an exported lease.

One script checks the exporter's token and replaces it with a new one. So a text works once, however many copies there are,
and no command of the exporter that is still in flight can affect the adopted lease.
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
        until = self._handoff.hold_until
        if until is not None:
            # Computed now: the text may have been parsed long ago, if connecting has taken long.
            left_s = until - time.time() + self.timer.clock.now() - self.sent_at
            if left_s <= 0:
                self._reject(True)
                return
            self._options = replace(self._options, max_hold_s=left_s)
        super().take(fence)

    def end_late(self, error: LockTimeout | None) -> None:
        super().end_late(None)  # whatever the reason is, the lease was not adopted
