"""Clean-ups: owner-checked releases without a caller."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import Request, in_calls
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import was_held
from wheel_lock.net.node import Node
from wheel_lock.protocol.resp import Reply, exceptions
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError, code_of

_FIRST_PAUSE_S = 0.05  # the first retry of a refused clean-up comes after twice this, the next after twice that
_LONGEST_PAUSE_S = 30.0


class Cleanup(Request):
    """An owner-checked release of grants that came too late, or may have come.

    It is tried until ``until``, in seconds of the timer's clock, when the keys have expired by themselves.
    """

    __slots__ = ("_lock_type", "_pause_s", "_until", "leases")

    leases: Sequence[Lease]

    def __init__(
        self, table: LeaseTable, node: Node, lock_type: LockType, leases: Sequence[Lease], until: float
    ) -> None:
        super().__init__(table, node)
        self._lock_type = lock_type
        self.leases = leases
        self._until = until
        self._pause_s = _FIRST_PAUSE_S

    def start(self) -> None:
        """Send the clean-up, or as many as it takes."""
        most = self.node.batch_size
        if len(self.leases) > most:
            for call in in_calls(list(self.leases), most):
                self._start_another(self.node, call)
            return
        self.timer.wheel.schedule(self, self.timer.scale.ceil(self._until))
        self.node.send(self)

    def _start_another(self, node: Node, leases: Sequence[Lease]) -> None:
        Cleanup(self.table, node, self._lock_type, leases, self._until).start()

    def encode(self, capability: int) -> bytes:
        if not self._lock_type.unique_tokens:
            now = self.timer.clock.now()
            self.leases = [lease for lease in self.leases if now < lease.deadline and was_held(lease)]
            if not self.leases:
                self.finish()
                return b""
        return super().encode(capability)

    def call(self) -> Command:
        return self._lock_type.release_many(self.leases)

    @property
    def awaited(self) -> bool:
        return False

    def value_reply(self, reply: Reply) -> None:
        refused: list[Lease] = []
        for index, status in exceptions(reply, len(self.leases)):
            lease = self.leases[index]
            if len(self.leases) > 1 and code_of(status) == NOT_LOCAL:
                self._start_another(self.table.router.shard_of(lease.key).node, [lease])
            elif isinstance(status, ServerError) and status.code != "WRONGTYPE":
                refused.append(lease)
        self.leases = refused
        self._refused()

    def _refused(self) -> None:
        """Retry what was refused after a pause: the reason may pass (BUSY, LOADING, a right that is granted again)."""
        if not self.leases or not self._lock_type.unique_tokens:  # another owner may have set the same token by then
            self.finish()
        else:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self.timer.call_at(self.timer.now + self._pause_s, lambda now: self.resend(), self)

    def on_keys_required(self) -> None:
        self.finish()
        self._start_another(self.node, self.leases)

    def on_error(self, error: ServerError) -> None:
        self._refused()

    def on_connection_lost(self, error: Exception) -> None:
        if not self._lock_type.unique_tokens:
            self.finish()
        elif not self.finished:
            ahead = self.node.last_own
            if isinstance(ahead, Cleanup) and ahead._merge(self):
                self.finish()
            else:
                self.node.send(self)

    def _merge(self, other: Cleanup) -> bool:
        """While this waits for a connection, add the leases of ``other`` if one call has room; return whether it has."""
        fits = len(self.leases) + len(other.leases) <= self.node.batch_size
        if self.finished or self._lock_type is not other._lock_type or not fits:
            return False
        self.leases = [*self.leases, *other.leases]
        if other._until > self._until:
            self._until = other._until
            self.timer.wheel.cancel(self)
            self.timer.wheel.schedule(self, self.timer.scale.ceil(self._until))
        return True

    def on_unavailable(self, error: Exception) -> None:
        self.finish()

    def on_timeout(self, now: float) -> None:
        self.finished: bool = True
