"""Several locks together: one attempt acquires all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.engine.future import Operation, nobody
from wheel_lock.engine.interfaces import terms_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import batch_call, node_of
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.base import NO_FENCE, Refusal
from wheel_lock.options import LockOptions
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Call
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError
from wheel_lock.runtime.failures import guarded


class AcquireAll(Acquire):
    """One try to acquire several exclusive locks, all of them or none.

    Attributes:
        blocker: The first that another holds; None where nobody is known to, and the answer came too late.
    """

    __slots__ = ("_instead", "blocker")

    def __init__(
        self, table: LeaseTable, leases: Sequence[Lease], options: LockOptions, operation: Operation[bool]
    ) -> None:
        super().__init__(table, leases, options, operation)
        self.blocker: Lease | None = None
        self._instead: AcquireInParts | None = None

    def one_by_one(self) -> None:
        self._ask_for_each()

    def error_reply(self, error: ServerError) -> None:
        if self.table.router.stable or error.code != NOT_LOCAL:
            super().error_reply(error)
        elif not self.finished:
            self.table.router.refresh()
            self._ask_for_each()  # alone: then the node says where it lives

    def _ask_for_each(self) -> None:
        """Nothing of it was carried out: ask for one name after the other."""
        self.finish()
        self.finished = False  # in other hands
        told: Operation[bool] = Operation(partial(guarded, self, self._told))
        self._instead = AcquireInParts(self.table, self.leases, self._options, told, alone=True)
        self._instead.perhaps_granted = self.tries > 1
        self._instead.caller_until = self.caller_until
        self._instead.begin()

    def _told(self) -> None:
        instead = self._instead
        assert instead is not None
        self.finished = True
        self.blocker, self.retry_ms = instead.blocker, instead.retry_ms
        if instead.operation.error is not None:
            self.operation.fail(instead.operation.error)
        else:
            self.operation.complete(instead.operation.result())

    def give_up(self) -> None:
        if self._instead is None:
            super().give_up()
        else:
            self.finished = True
            self._instead.operation = Operation(nobody)
            self._instead.give_up()

    def _call(self, *, again: bool) -> Call:
        terms = terms_of(self.lease)
        return batch_call(scripts.ACQUIRE_ALL, terms.kind, self.leases, terms.ttl)

    def read(self, reply: Reply) -> int | Refusal | ServerError:
        """0, or a list of the first that another holds and his remaining time."""
        if type(reply) is int and reply == 0:
            return NO_FENCE
        if type(reply) is list and len(reply) > 1:
            index, *rest = reply
            if type(index) is int and 1 <= index <= len(self.leases):
                refusal = self._kind.read_acquire(rest, again=False, waiting=True)
                self.blocker = self.leases[index - 1]
                self.name = self.blocker.name if isinstance(refusal, Refusal) and refusal.is_data else self.name
                return refusal
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")


class AcquireInParts(AcquireAll):
    """One try to acquire several exclusive locks that live on several nodes: node by node, always in the same order.

    As soon as one part is refused all that was granted before is released again, and only then is the caller told.

    Attributes:
        perhaps_granted: A call about all of them has been sent before, and its reply was lost.
    """

    __slots__ = ("_callbacks", "_granted", "_part", "_parts", "perhaps_granted")

    def __init__(
        self,
        table: LeaseTable,
        leases: Sequence[Lease],
        options: LockOptions,
        operation: Operation[bool],
        *,
        alone: bool = False,
    ) -> None:
        super().__init__(table, leases, options, operation)
        by_node: dict[str, list[Lease]] = {}
        for lease in leases:
            node = node_of(lease)
            place = lease.key.hex() if alone or node.one_by_one else node.connector.describe()
            by_node.setdefault(place, []).append(lease)
        self._parts = [by_node[node] for node in sorted(by_node, reverse=True)]  # the last one is the next
        self._part: AcquireAll | None = None
        self.perhaps_granted = False
        self._granted: list[Lease] = []
        self._callbacks = [lease.on_lost for lease in leases]
        for lease in leases:
            lease.on_lost = None  # nobody is told of the loss of what he has not been granted yet

    def begin(self) -> None:
        """Ask for the next part; there is none when all are granted."""
        if not self._parts:
            self._complete()
            return
        asked: Operation[bool] = Operation(partial(guarded, self, self._asked))
        self._part = part = AcquireAll(self.table, self._parts.pop(), self._options, asked)
        part.caller_until = self.caller_until
        part.begin()

    def _complete(self) -> None:
        """All parts are granted, unless the first of them have been lost while the last were asked for."""
        if any(lease.state > EXTENDING for lease in self.leases):
            self._undo_all(lambda: self.operation.complete(False))
            return
        self._part = None
        self.finished = True
        for lease, on_lost in zip(self.leases, self._callbacks, strict=True):
            lease.on_lost = on_lost
        self.operation.complete(True)

    def _asked(self) -> None:
        part = self._part
        assert part is not None
        error = part.operation.error
        if error is not None:
            self._undo_all(lambda: self.operation.fail(error))
        elif part.operation.result():
            self._granted.extend(part.leases)
            self.begin()
        else:
            self.blocker, self.retry_ms = part.blocker, part.retry_ms
            # Not before all is undone: the caller must not meet its own grants on the server.
            self._undo_all(lambda: self.operation.complete(False))

    def _undo_all(self, then: Callable[[], object]) -> None:
        self.finished = True
        self._part = None
        for leases in self._parts:
            self.table.reject(leases, self.perhaps_granted)
        self._parts.clear()
        granted = [lease for lease in self._granted if lease.state <= EXTENDING]
        self._granted.clear()
        release_many(self.table, granted, Operation(then))
        if self.caller_until is not None and granted:
            # A node that does not answer must not take more time than the caller has.
            self.timer.call_at(max(self.caller_until, self.timer.now), lambda now: then(), self)

    def give_up(self) -> None:
        """The caller waits no more: undo what was granted, or may have been."""
        part = self._part
        if part is not None:
            part.operation = Operation(nobody)
            part.give_up()
        self._undo_all(nobody)
