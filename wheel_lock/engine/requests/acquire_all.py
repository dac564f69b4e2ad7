"""Several locks together: one attempt acquires all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import batch_call, node_of
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.replies import NO_FENCE, Refusal
from wheel_lock.options import LockOptions
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError
from wheel_lock.runtime.failures import guarded


class AcquireAll(Acquire):
    """One try to acquire several exclusive locks, all of them or none.

    Attributes:
        blocker: The first that another holds; None where nobody is known to, and the answer came too late.
    """

    __slots__ = ("_instead", "blocker")

    def __init__(self, table: LeaseTable, leases: Sequence[Lease], options: LockOptions, future: Future[bool]) -> None:
        super().__init__(table, leases, options, future)
        self.blocker: Lease | None = None
        self._instead: AcquireAllSequential | None = None

    def on_single_key_mode(self) -> None:
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
        combined: Future[bool] = Future(partial(guarded, self, self._sequential_done))
        self._instead = AcquireAllSequential(self.table, self.leases, self._options, combined, alone=True)
        self._instead.perhaps_granted = self.executions > 1
        self._instead.caller_until = self.caller_until
        self._instead.begin()

    def _sequential_done(self) -> None:
        instead = self._instead
        assert instead is not None
        self.finished = True
        self.blocker, self.retry_ms = instead.blocker, instead.retry_ms
        if instead.future.error is not None:
            self.future.set_exception(instead.future.error)
        else:
            self.future.set_result(instead.future.result())

    def give_up(self) -> None:
        if self._instead is None:
            super().give_up()
        else:
            self.finished = True
            self._instead.future = Future(noop)
            self._instead.give_up()

    def _call(self, *, again: bool) -> Command:
        params = group_of(self.lease)
        return batch_call(scripts.ACQUIRE_ALL, params.lock_type, self.leases, params.ttl)

    def read(self, reply: Reply) -> int | Refusal | ServerError:
        """0, or a list of the first that another holds and his remaining time."""
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
        future: Future[bool],
        *,
        alone: bool = False,
    ) -> None:
        super().__init__(table, leases, options, future)
        by_node: dict[str, list[Lease]] = {}
        for lease in leases:
            node = node_of(lease)
            place = lease.key.hex() if alone or node.single_key_mode else node.connector.describe()
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
        asked: Future[bool] = Future(partial(guarded, self, self._asked))
        self._part = part = AcquireAll(self.table, self._parts.pop(), self._options, asked)
        part.caller_until = self.caller_until
        part.begin()

    def _complete(self) -> None:
        """All parts are granted, unless the first of them have been lost while the last were asked for."""
        if any(lease.state > EXTENDING for lease in self.leases):
            self._undo_all(lambda: self.future.set_result(False))
            return
        self._part = None
        self.finished = True
        for lease, on_lost in zip(self.leases, self._callbacks, strict=True):
            lease.on_lost = on_lost
        self.future.set_result(True)

    def _asked(self) -> None:
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
            # Not before all is undone: the caller must not meet its own grants on the server.
            self._undo_all(lambda: self.future.set_result(False))

    def _undo_all(self, then: Callable[[], object]) -> None:
        self.finished = True
        self._part = None
        for leases in self._parts:
            self.table.reject(leases, self.perhaps_granted)
        self._parts.clear()
        granted = [lease for lease in self._granted if lease.state <= EXTENDING]
        self._granted.clear()
        release_many(self.table, granted, Future(then))
        if self.caller_until is not None and granted:
            # A node that does not answer must not take more time than the caller has.
            self.timer.call_at(max(self.caller_until, self.timer.now), lambda now: then(), self)

    def give_up(self) -> None:
        """The caller waits no more: undo what was granted, or may have been."""
        part = self._part
        if part is not None:
            part.future = Future(noop)
            part.give_up()
        self._undo_all(noop)
