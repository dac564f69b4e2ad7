"""Acquire several locks together: one try acquires all of them or none, if possible by one call."""

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
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError
from wheel_lock.runtime.failures import guarded

_MOST_TOGETHER = 500  # locks of one call, which keeps the server from all else


class _Part(Acquire):
    """The call about some of the locks of a try, all of them or none."""

    __slots__ = ("_whole",)

    name: str | bytes | None

    def __init__(self, whole: AcquireAll, leases: Sequence[Lease], options: LockOptions, future: Future[bool]) -> None:
        super().__init__(whole.table, leases, options, future)
        self._whole = whole

    def error_reply(self, error: ServerError) -> None:
        if len(self.leases) == 1 or error.code != NOT_LOCAL:
            super().error_reply(error)
        elif not self.finished:
            self.not_executed()
            self.table.router.refresh()
            self.repeat_declared()  # so the node redirects each name that it does not own

    def repeat_declared(self) -> None:
        """Have a call for each name in the place of this one; nothing was executed."""
        self.finish()
        self._whole.split(self)

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
                self._whole.blocker = blocker = self.leases[index - 1]
                self.name = blocker.name if isinstance(refusal, Refusal) and refusal.is_data else self.name
                return refusal
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")


class AcquireAll(Acquire):
    """One try to acquire several exclusive locks, all of them or none, in parts: node by node, always in the same order.

    Each part is a call of its own, which follows the grant of the part before; usually one is enough. When a part is
    refused, the earlier parts are released again before the future is completed.

    Attributes:
        blocker: The first lease that another owner holds; None if the try failed for another reason.
    """

    __slots__ = ("_granted", "_maybe_granted", "_part", "_parts", "blocker")

    retry_ms: int | None

    def __init__(self, table: LeaseTable, leases: Sequence[Lease], options: LockOptions, future: Future[bool]) -> None:
        super().__init__(table, leases, options, future)
        by_node: dict[Node, list[Lease]] = {}
        for lease in leases:
            by_node.setdefault(node_of(lease), []).append(lease)
        self._parts: list[list[Lease]] = []  # the last one is the next
        for node in sorted(by_node, key=lambda node: node.connector.describe(), reverse=True):
            self._parts += reversed(in_calls(by_node[node], node.most_leases(_MOST_TOGETHER)))
        self._part: _Part | None = None
        self._maybe_granted = False  # a call about the parts to come was sent before, and its reply was lost
        self._granted: list[Lease] = []
        self.blocker: Lease | None = None

    def begin(self) -> None:
        """Send the next part, or complete the future when all parts are granted."""
        if not self._parts:
            self._complete()
            return
        answered: Future[bool] = Future(partial(guarded, self, self._answered))
        self._part = part = _Part(self, self._parts.pop(), self._options, answered)
        part.caller_until, part.patient, part.on_found = self.caller_until, self.patient, self.on_found
        part.begin()

    def split(self, part: _Part) -> None:
        """Go on with a call for each name of ``part``, which the server has refused as a whole."""
        self._maybe_granted = self._maybe_granted or part.maybe_executed
        self._parts += [[lease] for lease in reversed(part.leases)]
        self.begin()

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
            self.retry_ms = part.retry_ms
            # The future follows the releases: a caller that retries must not find its own grants on the server.
            self._undo_all(lambda: self.future.set_result(False))

    def _undo_all(self, then: Callable[[], object]) -> None:
        self.finished: bool = True
        self._part = None
        for leases in self._parts:
            self.table.reject(leases, self._maybe_granted)
        self._parts.clear()
        granted, self._granted = self._granted, []
        if not granted:
            then()
            return
        release_many(self.table, granted, Future(then))
        if self.caller_until is not None:
            # A node that does not answer must not use more time than the caller has left.
            self.timer.call_at(max(self.caller_until, self.timer.now), lambda now: then(), self)

    def abandon(self) -> None:
        if self._part is not None:
            self._part.future = Future(noop)
            self._part.abandon()
        self._undo_all(noop)
