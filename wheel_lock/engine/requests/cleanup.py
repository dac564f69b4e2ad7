"""Clean-ups: owner-checked releases that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import Request
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.node import Node
from wheel_lock.protocol.resp import Reply, exceptions
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError, code_of

_FIRST_PAUSE_S = 0.05  # before one that was refused is tried again, twice this
_LONGEST_PAUSE_S = 30.0


class Cleanup(Request):
    """An owner-checked release that nobody waits for: of grants that came too late, or may have come.

    It is tried until ``until``, when the keys have expired by themselves.
    """

    __slots__ = ("_leases", "_lock_type", "_pause_s", "_until")

    def __init__(
        self, table: LeaseTable, node: Node, lock_type: LockType, leases: Sequence[Lease], until: float
    ) -> None:
        super().__init__(table, node)
        self._lock_type = lock_type
        self._leases = leases
        self._until = until
        self._pause_s = _FIRST_PAUSE_S

    def start(self) -> None:
        """Send it, and give it up when its time has come."""
        if self.node.single_key_mode and len(self._leases) > 1:
            self.finished = True
            for lease in self._leases:
                Cleanup(self.table, self.node, self._lock_type, [lease], self._until).start()
            return
        self.timer.wheel.schedule(self, self.timer.scale.ceil(self._until))
        self.node.send(self)

    def finish(self) -> None:
        """There is nothing left to clean up."""
        self.finished = True
        self.timer.wheel.cancel(self)

    def call(self) -> Command:
        return self._lock_type.release_many(self._leases)

    @property
    def awaited(self) -> bool:
        return False

    @property
    def leases(self) -> Sequence[Lease]:
        return self._leases

    def value_reply(self, reply: Reply) -> None:
        refused: list[Lease] = []
        for index, status in exceptions(reply, len(self._leases)):
            lease = self._leases[index]
            if not self.table.router.stable and len(self._leases) > 1 and code_of(status) == NOT_LOCAL:
                node = self.table.router.shard_of(lease.key).node
                Cleanup(self.table, node, self._lock_type, [lease], self._until).start()
            elif isinstance(status, ServerError) and status.code != "WRONGTYPE":
                refused.append(lease)
        self._leases = refused
        self._refused()

    def _refused(self) -> None:
        """The server may be able to later (BUSY, LOADING, a right that is given back); should it never be, keys expire."""
        if not self._leases or not self._lock_type.unique_tokens:  # else the key may be a namesake's by then
            self.finish()
        else:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self.timer.call_at(self.timer.now + self._pause_s, lambda now: self.resend(), self)

    def retry_after(self, pause_s: float, *, maybe_executed: bool = False) -> bool:
        self.timer.call_at(self.timer.now + pause_s, lambda now: self.table.router.resend(self), self)
        return True

    def error_reply(self, error: ServerError) -> None:
        if self.table.router.redirect(self, error):
            return
        if self.node.note_keys_required(error, self.declared):
            self.finish()
            Cleanup(self.table, self.node, self._lock_type, self._leases, self._until).start()
        else:
            self._refused()

    def on_connection_lost(self, error: Exception) -> None:
        if not self._lock_type.unique_tokens:
            self.finish()
        elif not self.finished:
            ahead = self.node.last_own
            if isinstance(ahead, Cleanup) and ahead._takes_over(self):
                self.finish()
            else:
                self.node.send(self)

    def _takes_over(self, other: Cleanup) -> bool:
        """While this waits for a connection: add the leases of ``other`` if both fit into one call."""
        if (
            self.finished
            or self._lock_type is not other._lock_type
            or len(self._leases) + len(other._leases) > self.node.batch_size
        ):
            return False
        self._leases = [*self._leases, *other._leases]
        if other._until > self._until:
            self._until = other._until
            self.timer.wheel.cancel(self)
            self.timer.wheel.schedule(self, self.timer.scale.ceil(self._until))
        return True

    def on_unavailable(self, error: Exception) -> None:
        self.finish()

    def on_timeout(self, now: float) -> None:
        self.finished = True
