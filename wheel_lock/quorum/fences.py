"""The fence of a quorum lease, in two phases, as the register of ABD (Attiya, Bar-Noy, Dolev 1995).

1. Each master that grants the lease draws a fence of its own: one more than its last one, or the time of its clock. The
   largest that a majority has drawn is the fence of the lease.
2. That is written to the masters that have granted, each of which compares the token, and refuses if it has a larger one.
   The caller gets the lock when a majority has written it; their votes alone count until then.

So fences of two leases differ, and a lease that is requested when another one has been granted has the larger one. The
masters that have written the fences of both are two majorities, so one master is in both. Its key belongs to one token at a
time, and it writes only for that. One of the two leases has drawn there when the other's fence had been written, and
so a larger number; its fence is not less than that, or it would not have been written there.

That master must still have the fence. One that has lost its data draws the time of its clock, which decides if no other
master of the majority has the last fence: see docs/guide/fences.md. A vote that joins late has its master keep the lease's
fence, too (``acquire_fenced.lua``).
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import node_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.errors import LossReason, WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.lock_types import FENCED
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command


class WriteFence(CallerRequest):
    """Write ``fence`` where ``vote``, the lease of one node, is held. Its future receives whether it was written."""

    __slots__ = ("_fence", "_vote", "future")

    def __init__(self, table: LeaseTable, vote: Lease, fence: int, future: Future[bool]) -> None:
        super().__init__(table, node_of(vote), vote.name)
        self._vote = vote
        self._fence = fence
        self.future: Future[bool] = future

    @property
    def leases(self) -> Sequence[Lease]:
        return (self._vote,)

    def call(self) -> Command:
        return FENCED.write_fence(self._vote, self._fence)

    def value_reply(self, reply: Reply) -> None:
        outcome = FENCED.parse_write_fence(reply)
        if self.finished:
            return
        self.finish()
        if isinstance(outcome, LossReason):
            self.table.mark_lost([self._vote], outcome)
        self.future.set_result(outcome is True)

    def failed(self, error: WheelLockError) -> None:
        self.future.set_exception(error)

    def give_up(self) -> None:
        """Send it no more: the vote is about to be released."""
        self.finish()
