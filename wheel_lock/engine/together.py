"""Several locks together: one try asks for all of them, and is granted all or none.

Nothing is held while it waits: it stands in the line for the first name that another holds, and asks for all of them again
when that one may be free. So overlapping sets cannot wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from wheel_lock.engine.acquiring import Acquire
from wheel_lock.engine.kind import NO_FENCE, Refusal
from wheel_lock.engine.operation import Operation, nobody
from wheel_lock.engine.requests import batch_call, node_of, terms_of
from wheel_lock.engine.waiting import Acquisition
from wheel_lock.failures import guarded
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.options import LockOptions
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Call
from wheel_lock.protocol.server_errors import NOT_LOCAL, ServerError

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine


class AcquireAll(Acquire):
    """One try to acquire several exclusive locks, all of them or none.

    Attributes:
        blocker: The first that another holds; None where nobody is known to, and the answer came too late.
    """

    __slots__ = ("_instead", "blocker")

    def __init__(
        self, engine: Engine, leases: Sequence[Lease], options: LockOptions, operation: Operation[bool]
    ) -> None:
        super().__init__(engine, leases, options, operation)
        self.blocker: Lease | None = None
        self._instead: AcquireInParts | None = None

    def one_by_one(self) -> None:
        self._ask_for_each()

    def error_reply(self, error: ServerError) -> None:
        if self.cluster is None or error.code != NOT_LOCAL:
            super().error_reply(error)
        elif not self.finished:
            self.cluster.refresh()
            self._ask_for_each()  # alone: then the node says where it lives

    def _ask_for_each(self) -> None:
        """Nothing of it was carried out: ask for one name after the other."""
        self.finish()
        self.finished = False  # in other hands
        told: Operation[bool] = Operation(partial(guarded, self, self._told))
        self._instead = AcquireInParts(self._engine, self.leases, self._options, told, alone=True)
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
        engine: Engine,
        leases: Sequence[Lease],
        options: LockOptions,
        operation: Operation[bool],
        *,
        alone: bool = False,
    ) -> None:
        super().__init__(engine, leases, options, operation)
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
        self._part = part = AcquireAll(self._engine, self._parts.pop(), self._options, asked)
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
            self._engine.turn_down(leases, self.perhaps_granted)
        self._parts.clear()
        granted = [lease for lease in self._granted if lease.state <= EXTENDING]
        self._granted.clear()
        self._engine.release_many(granted, Operation(then))
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


class Together(Acquisition):
    """One caller's wait for several exclusive locks together."""

    __slots__ = ("_callbacks",)

    def __init__(self, engine: Engine, options: LockOptions, leases: Sequence[Lease], *rest: Any) -> None:
        super().__init__(engine, options, leases, *rest)
        self._callbacks = {lease: lease.on_lost for lease in leases}  # a try in parts takes them off

    @property
    def concerns_others(self) -> bool:
        """No: it may be about another name that it cannot ask."""
        return False

    def _another(self, first: Lease) -> Lease:
        lease = super()._another(first)
        lease.on_lost = self._callbacks[first]
        return lease

    def begin(self) -> None:
        """Ask for all of them: what somebody hears who asks for one of them says nothing about the others."""
        if not self.over:
            self.began_at = self._engine.timer.now
            self.try_once(self._tried, waiting=False)

    def _new_request(self, leases: Sequence[Lease], operation: Operation[bool], patience_ms: int) -> Acquire:
        if len(leases) > 1 and (len(set(map(node_of, leases))) > 1 or node_of(leases[0]).one_by_one):
            return AcquireInParts(self._engine, leases, self.options, operation)
        return AcquireAll(self._engine, leases, self.options, operation)

    def refused_by(self, request: Acquire) -> bool:
        """Wait for the name that another holds; return whether it is another name than before."""
        assert isinstance(request, AcquireAll)
        if request.blocker is None or request.blocker.key == self.key:
            return False
        self._wait_for(request.blocker.key)
        return True
