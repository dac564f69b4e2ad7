"""Force release: the request that releases a lock for its holders, of whatever process.

The server compares the holders with those that the caller has seen. A second execution after the first would find no
holder, or another one, so the request is not sent again unless it was certainly not executed.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.engine.future import Future
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.errors import LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.forced import force_release, parse_force_release
from wheel_lock.lock_types.holders import LockState
from wheel_lock.options import lock_name
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command


class ForceRelease(CallerRequest):
    """Release a lock for the holders that a look has found.

    Args:
        table: The lease table of the engine.
        name: The lock's name.
        seen: The state with the expected holders.
        own: The leases of this engine among them. If they are released they are lost: their keys are gone.
        future: Receives the number of holders that were removed, 0 if there is none any more, or None if they have changed.
    """

    __slots__ = ("_future", "_key", "_own", "_seen")

    def __init__(
        self,
        table: LeaseTable,
        name: str | bytes,
        seen: LockState,
        own: Sequence[Lease],
        future: Future[int | None],
    ) -> None:
        self._key = lock_name(name, table.state.options.prefix)
        self._seen = seen
        self._own = own
        self._future = future
        super().__init__(table, table.router.shard_of(self._key).node, name)

    def call(self) -> Command:
        return force_release(self._key, self._seen.key_type, self._seen.values)

    @property
    def key(self) -> bytes | None:
        return self._key

    @property
    def repeatable(self) -> bool:
        return not self.maybe_executed

    def value_reply(self, reply: Reply) -> None:
        removed = parse_force_release(reply)
        if removed:
            # Also if the caller has stopped waiting: the keys are gone.
            own = self.table.state.direct.forced(self._own)
            self.table.mark_lost([lease for lease in own if lease.state <= EXTENDING], LossReason.KEY_GONE)
        if not self.finished:
            self.finish()
            self._future.set_result(removed)

    def failed(self, error: WheelLockError) -> None:
        self._future.set_exception(error)
