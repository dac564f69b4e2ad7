"""Acquire and release, as single callers ask for them: the requests that begin and end a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.engine.future import Operation, nobody
from wheel_lock.engine.interfaces import Shard, shard_at, terms_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest, acquiring_node_of, hold_limit_error, least_s, node_of
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.engine.requests.permissions import Look, needs_of
from wheel_lock.errors import LockLost, LockServerError, LockTimeout, LossReason, WheelLockError
from wheel_lock.lease import Event, Lease, State
from wheel_lock.lock_types.base import Contention, Kind, Refusal
from wheel_lock.net.connection import NodeRequest
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call
from wheel_lock.protocol.server_errors import ServerError


class Acquire(CallerRequest):
    """One try to acquire one lock, or several together. Completes with whether all of them were granted.

    Attributes:
        leases: What is to be granted; all of one group.
        operation: What it completes.
        retry_ms: Where it was refused, when to ask again at the latest, in milliseconds from now, if that is known.
        caller_until: When its caller's time is up, in seconds of the timer's clock; None for never.
        cut_short: Whether it has ended because its caller's time was up, which says nothing to other callers.
        on_found: Called with the type of a key that is no lock of this type and expires, if its caller waits for that.
    """

    __slots__ = (
        "_counted",
        "_hurried",
        "_kind",
        "_options",
        "_patience_ms",
        "caller_until",
        "cut_short",
        "leases",
        "on_found",
        "operation",
        "retry_ms",
    )

    def __init__(
        self,
        table: LeaseTable,
        leases: Sequence[Lease],
        options: LockOptions,
        operation: Operation[bool],
        *,
        patience_ms: int = 0,
    ) -> None:
        limit_s = table.state.options.response_timeout_s
        super().__init__(table, acquiring_node_of(leases[0]), leases[0].name, limit_s)
        self.leases = leases
        self._kind: Kind = terms_of(leases[0]).kind
        self._options = options
        self._patience_ms = patience_ms
        self.operation = operation
        self.retry_ms: int | None = None
        self.caller_until: float | None = None
        self.cut_short = False
        self._hurried = False  # its caller's time is up before its own
        self.on_found: Callable[[str], object] | None = None
        self._counted = False  # among those being acquired
        self.suspicion_s = min(self.suspicion_s, options.timeout_s / 6)

    @property
    def lease(self) -> Lease:
        """The only one, or the first."""
        return self.leases[0]

    @property
    def subjects(self) -> Sequence[Lease]:
        return self.leases

    def road_to(self, shard: Shard) -> Node:
        return shard.acquiring_node

    @property
    def needs(self) -> frozenset[str]:
        return needs_of(self._kind, self.lease, renewed=self._options.renew_every_s is not None)

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        return Look(self) if missing_rights & self.needs else self

    @property
    def may_wait(self) -> bool:
        return not self.asked  # else it must follow its ASKING directly

    @property
    def _queues(self) -> bool:
        """Whether it keeps a place in a queue at the server: of very many that do, next to none are granted."""
        return self._patience_ms > 0 and self._kind.contention is Contention.QUEUED

    def call(self) -> Call:
        return self._call(again=self.tries > 0)

    def _call(self, *, again: bool) -> Call:
        ttl_ms = terms_of(self.leases[0]).timeout_ms
        return self._kind.acquire(self.leases[0], ttl_ms, again=again, patience_ms=self._patience_ms)

    def read(self, reply: Reply) -> int | Refusal | ServerError:
        """Return what the reply says: a fence, a refusal, or the server's error."""
        return self._kind.read_acquire(reply, again=self.tries > 1, waiting=self._patience_ms > 0)

    def value_reply(self, reply: Reply) -> None:
        verdict = self.read(reply)
        if self.finished:
            self._too_late(verdict)
            return
        if isinstance(verdict, ServerError):
            self.error_reply(verdict)
            return
        replicas = shard_at(self.node).replicas
        if isinstance(verdict, Refusal):
            if verdict.is_data:
                self.error_reply(self._no_lock(verdict))
                return
            self.finish()
            if verdict.found is not None and self.on_found is not None:
                self.on_found(verdict.found)
            self.retry_ms = verdict.retry_ms
            # Of several, an earlier try whose reply was lost may have been granted those that nobody else holds now.
            self._turn_down(self.tries > 1 and len(self.leases) > 1)
        elif replicas is None:
            self.finish()
            self.take(verdict)
        else:
            replicas.confirm(partial(self._replicated, verdict))

    def _no_lock(self, refusal: Refusal) -> ServerError:
        return ServerError(
            f"WRONGTYPE the key holds a {refusal.found} that does not expire: it is data and no lock, for which it would "
            f"hold a {self._kind.key_type}"
        )

    def _replicated(self, fence: int, error: WheelLockError | None) -> None:
        """Enough replicas have the grant, or it is taken back."""
        if self.finished:
            self._take_back(fence)
            return
        self.finish()
        if error is None:
            self.take(fence)
        else:
            self._take_back(fence)
            self._undo(True)
            error.lock_name = self.name  # type: ignore[assignment]  # redis-py annotates str only
            self.operation.fail(error)

    def _take_back(self, fence: int) -> None:
        """Release what the server has granted for certain, also where others may have chosen the same token."""
        if not self._kind.own_tokens and self.node.connected:  # else it could have expired before that arrives
            self._too_late(fence)

    def take(self, fence: int) -> None:
        """The server has granted it."""
        refusal = self.table.admission_error(self.name, len(self.leases)) if self._queues else None
        if refusal is not None:
            self._undo(True)
            self.operation.fail(refusal)
            return
        if self.table.grant(self.leases, self._options, self.sent_at):
            self.leases[0].fence = fence or None
            self.operation.complete(True)
            return
        # Granted, but the reply took longer than the lease lasts, or than it may be held.
        if not self._kind.own_tokens:
            self._too_late(fence)
        self.table.reject(self.leases, self._kind.own_tokens, self.node)
        self.end_late(hold_limit_error(self.name, self._options, self.timer.clock.now() - self.sent_at))

    def end_late(self, error: LockTimeout | None) -> None:
        """End a try whose grant has come too late; ``error`` says so where the hold limit is the reason."""
        if error is None:
            self.operation.complete(False)
        else:
            self.operation.fail(error)

    def _too_late(self, verdict: int | Refusal | ServerError) -> None:
        """Nobody waits any more. An owner-checked release is under way, or else it was waited for this answer."""
        if self.leases[0].state is State.PENDING and isinstance(verdict, int):
            for lease in self.leases:
                lease.move(Event.GRANTED)
                lease.move(Event.RELEASE)
            self.table.clean_up(self.leases, self.node)

    def _undo(self, clean_up: bool) -> None:
        """End the try without a grant; ``clean_up`` where the server may have granted it all the same."""
        if not clean_up or self._kind.own_tokens:
            self.table.reject(self.leases, clean_up, self.node)
        # Else a key with this token may be somebody else's, and only the answer, should it come, tells.

    def _turn_down(self, clean_up: bool) -> None:
        self.table.reject(self.leases, clean_up, self.node)
        self.operation.complete(False)

    def failed(self, error: WheelLockError) -> None:
        # A plain command that is answered by an error has done nothing. A script may have come half-way, and a try
        # without a reply may have been granted.
        nothing_done = isinstance(error, LockServerError) and self._call(again=False).script is None
        self._undo(self.tries > nothing_done)
        self.operation.fail(error)

    def start(self) -> None:
        """Send it, and let its time run: that of any request, or what its caller has left where that is less."""
        super().start()
        if self.caller_until is not None:
            begun_at = self.until - self.limit_s
            left_s = max(self.caller_until - begun_at, least_s(self.node))
            if left_s < self.limit_s:
                self._hurried = True
                self.limit_s = left_s
                self.until = begun_at + left_s + self.timer.scale.tick_s  # because what is due is rounded down

    def late(self, now: float) -> None:
        self.cut_short = self._hurried and self.timer.scale.floor(self.until) <= self.timer.wheel.now
        super().late(now)

    def begin(self) -> None:
        """Send it, unless the context takes no more."""
        refusal = self.table.admission_error(self.name, len(self.leases))
        if refusal is None:
            if not self._queues:
                self._counted = True
                self.table.acquiring += len(self.leases)
            self.table.router.watch_master()
            self.start()
        else:
            self.finished = True
            self.table.reject(self.leases, False)
            self.operation.fail(refusal)

    def finish(self) -> None:
        self.finished = True
        if self.tick >= 0:
            self.timer.wheel.cancel(self)
        if self._counted:
            self._counted = False
            self.table.acquiring = max(self.table.acquiring - len(self.leases), 0)  # a failure has forgotten them

    def give_up(self) -> None:
        """The caller waits no more: undo what was granted, or may have been."""
        if not self.finished:
            self.withdraw()
            self.finish()
            self._undo(bool(self.sends))
        else:
            kept = [lease for lease in self.leases if lease.state <= State.EXTENDING]
            if kept:
                release_many(self.table, kept, Operation(nobody))


def release(table: LeaseTable, lease: Lease, operation: Operation[None]) -> None:
    """Release one lease. Nothing is sent for it any more once the operation is done."""
    error = table.begin_release(lease)
    if error is None:
        Release(table, lease, operation).start()
        table.listener.ended(lease)  # a waiter of this process asks right behind the release, in the same write
    elif lease in table.swaps:
        table.swaps[lease].release(operation)
    else:
        operation.fail(error)


class Release(CallerRequest):
    """The release of one lease. Completes when the key is gone, or fails with why the lease was not ours any more."""

    __slots__ = ("_operation", "lease")

    def __init__(self, table: LeaseTable, lease: Lease, operation: Operation[None]) -> None:
        super().__init__(table, node_of(lease), lease.name, table.state.options.response_timeout_s)
        self._operation = operation
        self.lease = lease

    @property
    def subjects(self) -> Sequence[Lease]:
        return (self.lease,)

    def call(self) -> Call:
        return terms_of(self.lease).kind.release(self.lease)

    @property
    def awaited(self) -> bool:
        return True  # other owners wait for the lock, and nothing more is sent for it after its call has ended

    @property
    def repeatable(self) -> bool:
        return terms_of(self.lease).kind.own_tokens  # else the key may be a namesake's by the next try

    def value_reply(self, reply: Reply) -> None:
        outcome = terms_of(self.lease).kind.read_release(reply)
        if self.finished:
            return
        if isinstance(outcome, ServerError):
            self.error_reply(outcome)
            return
        self.finish()
        # When an earlier try's reply was lost, that the key is gone, or another's, is what that try has achieved.
        if isinstance(outcome, LossReason) and self.tries <= 1:
            self.table.mark_lost([self.lease], outcome)
            self._operation.fail(LockLost(self.lease.name, outcome))
            return
        if not isinstance(outcome, LossReason):
            self.table.listener.listened(self.lease, outcome)
        self.table.release_done([self.lease])
        self._operation.complete(None)

    def failed(self, error: WheelLockError) -> None:
        self.table.release_unknown([self.lease])
        self._operation.fail(error)
