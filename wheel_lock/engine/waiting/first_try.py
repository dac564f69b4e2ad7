"""A wait that is one try: the request and the caller's wait in one object, as long as nothing unusual happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.acquire import OF_REQUESTS, PlainAcquire
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, end_of_try
from wheel_lock.engine.requests.execution import BY_SHA1, LATEST, NONE, Execution, Sending
from wheel_lock.engine.waiting.waiter import Registry, Waiter
from wheel_lock.errors import WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import Contention, LockType
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.failures import contain
from wheel_lock.runtime.timer import HashedWheelTimer


class FirstTry(PlainAcquire):
    """One caller's wait for one lock, and its first try, which is usually granted: it completes the caller's future itself.

    On everything else a ``Waiter`` takes over: a queue for the name or another first try of it, a limit of the context, a
    refusal, an error, a grant that comes too late, another waiter that wants to share the answer. Before the try was sent
    the waiter begins anew; later this try is the waiter's first, exactly as if the waiter had begun it. All that is said of
    ``Waiter`` holds for this class, too, and so its arguments are those of ``Waiter``.

    Attributes:
        queue_key: The key of the wait queue that the waiter would join.
    """

    __slots__ = ("_caller", "_registry", "_token_given", "_waiter", "began_at", "queue_key")

    execution: Execution
    sending: Sending
    finished: bool
    limit_s: float
    table: LeaseTable
    timer: HashedWheelTimer

    def __init__(
        self,
        queues: Registry,
        options: LockOptions,
        lease: Lease,
        key: bytes,
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> None:
        # Not through super(), which is four calls: most acquires make one of these. A test compares what is set.
        group = group_of(lease)
        self._registry = queues
        self.table = table = queues.table
        self.timer = timer = table.timer
        self.tick = -1
        self.group = REQUEST_TIMEOUTS
        self.node: Node = group.renewer.acquiring_node
        self.declared = self.finished = False
        self.execution, self.sending = NONE, BY_SHA1
        self.sent_at: float = timer.now
        self.name: str | bytes = lease.name
        self.refusal: ServerError | None = None
        self.limit_s = limit_s = table.state.options.response_timeout_s
        patience_s, share_s = limit_s / 5, options.timeout_s / 6
        self.suspicion_s: float = patience_s if patience_s < share_s else share_s
        self.until: float = 0.0
        self.leases: Sequence[Lease] = (lease,)
        self._lock_type: LockType = group.lock_type
        self._options = options
        self._waiter_ttl_ms = 0
        self.retry_ms: int | None = None
        self.caller_until = until
        self._counted, self._limit = False, OF_REQUESTS
        self.on_found: Callable[[str], object] | None = None
        self._token_given = token_given
        self.patient: bool = blocking
        self._caller = future
        self._waiter: Waiter | None = None
        self.began_at: float | None = None
        self.queue_key: bytes = group.lock_type.queue_key(key)

    def begin(self) -> None:
        """Send the try if nothing stands against it; otherwise have a waiter begin."""
        if self.finished:
            return
        try:
            queues = self._registry
            if self.table.admission_error(self.name, 1) is not None:
                self.as_waiter().begin()
                return
            if self.patient:
                queued = queues.queues and queues.find(self.queue_key) is not None
                if queued or self.queue_key in queues.in_flight:
                    self.as_waiter().begin()
                    return
                if self._lock_type.contention is not Contention.SHARED:
                    queues.in_flight[self.queue_key] = self
            self.began_at = self.timer.now
            self.begin_admitted()
        except Exception as error:
            contain(self.as_waiter(), self.begin, error)

    def go_on(self, sent_at: float, reply: Reply, answered: bool) -> None:
        """Continue a try that the caller itself has sent, on the direct path.

        Args:
            sent_at: When it was about to be sent, in seconds of the timer's clock.
            reply: The reply, if it was ``answered``. If not, the try may have been executed, and is repeated.
            answered: True if there was a reply.
        """
        if self.finished:
            return
        try:
            self.sent_at = self.began_at = sent_at
            self._counted = True
            self.table.acquiring += 1
            self.until = sent_at + self.limit_s
            if self.caller_until is not None:
                self._hurry(self.caller_until)
            self.look_from_now()  # behind it: at the caller's time limit, if that comes first
            if answered:
                self.on_reply(reply)
            else:
                self.leases[0].loss = None  # what was removed by force may be granted again
                self.node.send(self)
        except Exception as error:
            contain(self.as_waiter(), self.go_on, error)

    def _hurry(self, caller_until: float) -> None:
        super()._hurry(end_of_try(caller_until, self.until - self.limit_s, self.node))

    def as_waiter(self) -> Waiter:
        """Return the waiter that takes over; from now on this is the first of its tries."""
        waiter = self._waiter
        if waiter is None:
            registry, until = self._registry, self.caller_until
            waiter = Waiter(registry, self._options, self.leases, self._token_given, self.patient, until, self._caller)
            if self.began_at is not None:
                waiter.take_over(self, self.began_at)
            if registry.in_flight.get(self.queue_key) is self:
                registry.in_flight[self.queue_key] = waiter
            self._waiter = waiter  # last: after a failure in here the next caller begins anew
        return waiter

    def on_reply(self, reply: Reply) -> None:
        if (
            self._waiter is None
            and self.execution is LATEST
            and not self.finished
            and not isinstance(reply, ServerError)
        ):
            fence = self._lock_type.parse_acquire(reply, again=False, waiting=False)
            if isinstance(fence, int):
                self.finish()
                table = self.table
                if table.grant(self.leases, self._options, self.sent_at):
                    table.state.counters.acquire.add(table.granted_at - (self.began_at or self.sent_at))
                    if fence:
                        self.leases[0].fence = fence
                    self._caller.set_result(self.leases)
                else:
                    self.as_waiter()
                    self.taken_late(fence)
                return
        if not self.finished:
            self.as_waiter()
        super().on_reply(reply)

    def failed(self, error: WheelLockError) -> None:
        self.as_waiter()
        super().failed(error)

    def finish(self) -> None:
        in_flight = self._registry.in_flight
        if in_flight.get(self.queue_key) is self:
            del in_flight[self.queue_key]
        # The rest is that of Acquire.finish(), without a call.
        self.finished = True
        if self.tick >= 0:
            self.timer.wheel.cancel(self)
        if self._counted:
            self._counted = False
            table = self.table
            table.acquiring = table.acquiring - 1 if table.acquiring > 0 else 0

    def give_up(self) -> None:
        """End the wait of a caller that does not wait any more: undo what was granted, or may have been."""
        if self._waiter is None:
            self.abandon()
        else:
            self._waiter.give_up()
