"""Acquire several locks together: one try acquires all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import group_of, node_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import batch_call, in_calls
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.lease import Lease
from wheel_lock.lock_types.replies import NO_FENCE, Refusal
from wheel_lock.options import LockOptions
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError
from wheel_lock.runtime.failures import guarded

MOST_TOGETHER = 500  # locks of one call, which keeps the server from all else


class AcquireAll(Acquire):
    """One try to acquire several exclusive locks, all of them or none.

    Attributes:
        blocker: The first lease that another owner holds; None if the try failed for another reason.
    """

    __slots__ = ("_sequential", "blocker")

    name: str | bytes | None
    retry_ms: int | None

    def __init__(self, table: LeaseTable, leases: Sequence[Lease], options: LockOptions, future: Future[bool]) -> None:
        super().__init__(table, leases, options, future)
        self.blocker: Lease | None = None
        self._sequential: AcquireAllSequential | None = None

    def error_reply(self, error: ServerError) -> None:
        if len(self.leases) == 1 or error.code != NOT_LOCAL:
            super().error_reply(error)
        elif not self.finished:
            self.not_executed()
            self.table.router.refresh()
            self.repeat_declared()  # so the node redirects each name that it does not own

    def repeat_declared(self) -> None:
        """Acquire one name after the other; nothing was executed."""
        self.finish()
        self.finished = False  # the sequential acquire will end it
        combined: Future[bool] = Future(partial(guarded, self, self._sequential_done))
        self._sequential = AcquireAllSequential(self.table, self.leases, self._options, combined, alone=True)
        self._sequential.maybe_granted = self.maybe_executed
        self._sequential.caller_until = self.caller_until
        self._sequential.begin()

    def look_later(self) -> None:
        """Go onto the wheel, unless the sequential acquire has taken over: its parts have time limits of their own."""
        if self._sequential is None:
            super().look_later()

    def _sequential_done(self) -> None:
        sequential = self._sequential
        assert sequential is not None
        self.finished = True
        self.blocker, self.retry_ms = sequential.blocker, sequential.retry_ms
        if sequential.future.error is not None:
            self.future.set_exception(sequential.future.error)
        else:
            self.future.set_result(sequential.future.result())

    def abandon(self) -> None:
        if self._sequential is None:
            super().abandon()
        else:
            self.finished: bool = True
            self._sequential.future = Future(noop)
            self._sequential.abandon()

    def _call(self, *, again: bool) -> Command:
        params = group_of(self.lease)
        return batch_call(scripts.ACQUIRE_ALL, params.lock_type, self.leases, params.ttl)

    def read(self, reply: Reply) -> int | Refusal | ServerError:
        """Parse 0, or a list: the index of the first lease that another owner holds, and its remaining milliseconds."""
        if type(reply) is int and reply == 0:
            return NO_FENCE
        if type(reply) is list and len(reply) > 1:
            index, *rest = reply
            if type(index) is int and 1 <= index <= len(self.leases):
                refusal = self._lock_type.parse_acquire(rest, again=False, waiting=True)
                self.blocker = self.leases[index - 1]
                self.name = self.blocker.name if isinstance(refusal, Refusal) and refusal.is_data else self.name
                return refusal
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")


class AcquireAllSequential(AcquireAll):
    """One try to acquire several exclusive locks in parts: node by node, name by name, always in the same order.

    Each part is a call of its own, which follows the grant of the part before. When a part is refused, the earlier parts
    are released again before the future is completed.

    Attributes:
        maybe_granted: True if a call about all leases was sent before, and its reply was lost.
    """

    __slots__ = ("_granted", "_part", "_parts", "maybe_granted")

    blocker: Lease | None
    retry_ms: int | None

    def __init__(
        self,
        table: LeaseTable,
        leases: Sequence[Lease],
        options: LockOptions,
        future: Future[bool],
        *,
        alone: bool = False,
    ) -> None:
        super().__init__(table, leases, options, future)
        by_part: dict[str, list[Lease]] = {}
        for lease in leases:
            node = node_of(lease)
            one = alone or node.most_leases(MOST_TOGETHER) == 1
            by_part.setdefault(lease.key.hex() if one else node.connector.describe(), []).append(lease)
        self._parts = [  # the last one is the next
            call for part in sorted(by_part, reverse=True) for call in reversed(in_calls(by_part[part], MOST_TOGETHER))
        ]
        self._part: AcquireAll | None = None
        self.maybe_granted: bool = False
        self._granted: list[Lease] = []

    def begin(self) -> None:
        """Send the next part, or complete the future when all parts are granted."""
        if not self._parts:
            self._complete()
            return
        answered: Future[bool] = Future(partial(guarded, self, self._answered))
        self._part = part = AcquireAll(self.table, self._parts.pop(), self._options, answered)
        part.caller_until = self.caller_until
        part.begin()

    def _complete(self) -> None:
        """Complete the future: with False if a lease has ended before the last part was granted."""
        now = self.timer.clock.now()
        if not all(lease.is_valid(now) for lease in self.leases):
            self._undo_all(lambda: self.future.set_result(False))
            return
        self._part = None
        self.finished = True
        self.future.set_result(True)

    def _answered(self) -> None:
        part = self._part
        assert part is not None
        error = part.future.error
        if error is not None:
            self._undo_all(lambda: self.future.set_exception(error))
        elif part.future.result():
            self._granted.extend(part.leases)
            self.begin()
        else:
            self.blocker, self.retry_ms = part.blocker, part.retry_ms
            # The future follows the releases: a caller that retries must not find its own grants on the server.
            self._undo_all(lambda: self.future.set_result(False))

    def _undo_all(self, then: Callable[[], object]) -> None:
        self.finished: bool = True
        self._part = None
        for leases in self._parts:
            self.table.reject(leases, self.maybe_granted)
        self._parts.clear()
        granted, self._granted = self._granted, []
        release_many(self.table, granted, Future(then))
        if self.caller_until is not None and granted:
            # A node that does not answer must not use more time than the caller has left.
            self.timer.call_at(max(self.caller_until, self.timer.now), lambda now: then(), self)

    def abandon(self) -> None:
        if self._part is not None:
            self._part.future = Future(noop)
            self._part.abandon()
        self._undo_all(noop)
