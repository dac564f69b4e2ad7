"""Acquire: the request that begins a lease."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Shard, acquiring_node_of, group_of, shard_at
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest, hold_limit_error, needs_of
from wheel_lock.engine.requests.bulk_operations import release_unwanted
from wheel_lock.engine.requests.execution import ASKING
from wheel_lock.errors import LockServerError, LockTimeout, WheelLockError
from wheel_lock.lease import Event, Lease, State, local_deadline
from wheel_lock.lock_types.base import Contention, LockType
from wheel_lock.lock_types.replies import Refusal
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError


class TimeLimit(enum.IntEnum):
    """The time limit of a try."""

    OF_REQUESTS = 0
    OF_CALLER = 1  # which comes first
    OF_CALLER_REACHED = 2


OF_REQUESTS, OF_CALLER, OF_CALLER_REACHED = TimeLimit


class Acquire(CallerRequest):
    """One try to acquire one lock, or several together. Its future receives True if all of them were granted.

    Attributes:
        leases: PENDING leases of one group.
        future: The future that the try completes.
        retry_ms: The number of milliseconds after which a refused try is to be repeated at the latest, if known.
        caller_until: When the try ends for its caller's sake, in seconds of the timer's clock; None if that has no limit.
        patient: False if its caller does not wait: a server that refuses connections is an answer then.
        on_found: Called with the type of the key if that is not this lock type's and expires; None to ignore it.
    """

    __slots__ = (
        "_counted",
        "_limit",
        "_lock_type",
        "_options",
        "_waiter_ttl_ms",
        "caller_until",
        "future",
        "leases",
        "on_found",
        "patient",
        "retry_ms",
    )

    leases: Sequence[Lease]

    def __init__(
        self,
        table: LeaseTable,
        leases: Sequence[Lease],
        options: LockOptions,
        future: Future[bool],
        *,
        waiter_ttl_ms: int = 0,
    ) -> None:
        super().__init__(table, acquiring_node_of(leases[0]), leases[0].name)
        self.leases = leases
        self._lock_type: LockType = group_of(leases[0]).lock_type
        self._options = options
        self._waiter_ttl_ms = waiter_ttl_ms
        self.future: Future[bool] = future
        self.retry_ms: int | None = None
        self.patient: bool = True
        self.caller_until: float | None = None
        self._limit = OF_REQUESTS
        self.on_found: Callable[[str], object] | None = None
        self._counted = False  # its leases are counted in LeaseTable.acquiring
        self.suspicion_s: float = min(self.suspicion_s, options.timeout_s / 6)

    @property
    def cut_short(self) -> bool:
        """True if the try ended because of its caller's time limit, which does not concern other callers."""
        return self._limit is OF_CALLER_REACHED

    @property
    def lease(self) -> Lease:
        """The only lease, or the first."""
        return self.leases[0]

    def outlasts_refusal(self, *, first: bool) -> bool:
        return self.patient and (not first or self.caller_until is not None)

    def node_on(self, shard: Shard) -> Node:
        return shard.acquiring_node

    @property
    def needs(self) -> frozenset[str]:
        return needs_of(self._lock_type, self.lease, renewed=self._options.renew_every_s is not None)

    @property
    def may_wait(self) -> bool:
        return self.sending is not ASKING  # a request with ASKING must follow that directly

    @property
    def _queues(self) -> bool:
        """True if a try that waits keeps a place in a queue at the server. Hardly any of many such tries is granted."""
        return self._lock_type.contention is Contention.SERVER_QUEUE

    @property
    def waiting(self) -> bool:
        """True if the try registers its waiter, or asks for the holder's remaining time."""
        return self._waiter_ttl_ms > 0

    def may_grant(self) -> Sequence[Lease]:
        return self.leases

    def call(self) -> Command:
        return self._call(again=self.maybe_executed)

    def _call(self, *, again: bool) -> Command:
        ttl_ms = group_of(self.leases[0]).timeout_ms
        return self._lock_type.acquire(self.leases[0], ttl_ms, again=again, waiter_ttl_ms=self._waiter_ttl_ms)

    def read(self, reply: Reply) -> int | Refusal | ServerError:
        """Parse the reply: a fence, a refusal, or the server's error."""
        return self._lock_type.parse_acquire(reply, again=self.maybe_executed_before, waiting=self._waiter_ttl_ms > 0)

    def value_reply(self, reply: Reply) -> None:
        status = self.read(reply)
        if self.finished:
            self._too_late(status)
            return
        if isinstance(status, ServerError):
            self.error_reply(status)
            return
        if isinstance(status, Refusal):
            if status.is_data:
                self.error_reply(self._no_lock(status))
                return
            self.finish()
            if status.found is not None and self.on_found is not None:
                self.on_found(status.found)
            self.retry_ms = status.retry_ms
            # An earlier try for several leases, whose reply was lost, may have been granted those that are free.
            self._reject(self.maybe_executed_before and len(self.leases) > 1)
        elif (confirm_grant := shard_at(self.node).confirm_grant) is None:
            self.finish()
            self.take(status)
        else:
            confirm_grant(partial(self._replicated, status))

    def _no_lock(self, refusal: Refusal) -> ServerError:
        return ServerError(
            f"WRONGTYPE the key holds a {refusal.found} that does not expire: it is data and no lock, for which it would "
            f"hold a {self._lock_type.key_type}"
        )

    def _replicated(self, fence: int, error: WheelLockError | None) -> None:
        """Take a grant that enough replicas have, or revoke it if ``error`` says that they do not."""
        if self.finished:
            self._revoke(fence)
            return
        self.finish()
        if error is None:
            self.take(fence)
        else:
            self._revoke(fence)
            self._undo(True)
            error.lock_name = self.name  # type: ignore[assignment]  # redis-py annotates str only
            self.future.set_exception(error)

    def _revoke(self, fence: int) -> None:
        """Release a grant that is certain, also if other owners may have chosen the same token."""
        if not self._lock_type.unique_tokens and self.node.connected:  # else it may expire before the release arrives
            self._too_late(fence)

    def take(self, fence: int) -> None:
        """Make the leases held that the server has granted, or release them if the grant came too late."""
        refusal = None
        if self._waiter_ttl_ms and self._queues:
            refusal = self.table.admission_error(self.name, len(self.leases))
        if refusal is not None:
            self._undo(True)
            self.future.set_exception(refusal)
            return
        if self.table.grant(self.leases, self._options, self.sent_at):
            self.leases[0].fence = fence or None
            self.future.set_result(True)
        else:
            self.taken_late(fence)

    def taken_late(self, fence: int) -> None:
        """Release what the server has granted: the reply took longer than the lease lasts, or than it may be held."""
        if not self._lock_type.unique_tokens:
            self._too_late(fence)
        self.table.reject(self.leases, self._lock_type.unique_tokens, self.node)
        self.end_late(hold_limit_error(self.name, self._options, self.timer.clock.now() - self.sent_at))

    def end_late(self, error: LockTimeout | None) -> None:
        """Complete a try whose grant came too late: with ``error`` if the hold limit is the reason, else with False."""
        if error is None:
            self.future.set_result(False)
        else:
            self.future.set_exception(error)

    def _too_late(self, status: int | Refusal | ServerError) -> None:
        """Release what a reply to a finished try grants, unless a release is in flight already."""
        if self.leases[0].state is State.PENDING and isinstance(status, int):
            deadline = local_deadline(self.sent_at, group_of(self.lease).timeout_s)
            for lease in self.leases:
                lease.transition(Event.GRANTED)
                lease.transition(Event.RELEASE)
                lease.deadline = deadline  # behind it, a key with a caller token may be a namesake's
            self.table.clean_up(self.leases, self.node)

    def _undo(self, clean_up: bool) -> None:
        """End the leases without a grant; with ``clean_up`` if the server may have granted them."""
        # A key with a caller token may be another owner's: only a late reply could tell, and _too_late handles it.
        if not clean_up or self._lock_type.unique_tokens:
            self.table.reject(self.leases, clean_up, self.node)

    def _reject(self, clean_up: bool) -> None:
        self.table.reject(self.leases, clean_up, self.node)
        self.future.set_result(False)

    def failed(self, error: WheelLockError) -> None:
        # A plain command with an error reply has done nothing. A script may have failed half-way, and a try without a
        # reply may have been granted.
        if isinstance(error, LockServerError) and self._call(again=False).script is None:
            self.not_executed()
        self._undo(self.maybe_executed)
        self.future.set_exception(error)

    def _hurry(self, caller_until: float) -> None:
        """Lower the time limit to that of the caller."""
        begun_at = self.until - self.limit_s
        left_s = max(caller_until - begun_at, 0.0)
        if left_s < self.limit_s:
            self._limit = OF_CALLER
            self.limit_s = left_s
            self.until: float = begun_at + left_s + self.timer.scale.tick_s  # because due ticks are rounded down

    def on_timeout(self, now: float) -> None:
        if self._limit is OF_CALLER and self.timer.scale.floor(self.until) <= self.timer.wheel.now:
            self._limit = OF_CALLER_REACHED
        super().on_timeout(now)

    def begin(self) -> None:
        """Send the try unless the context is closed or full."""
        refusal = self.table.admission_error(self.name, len(self.leases))
        if refusal is None:
            self.begin_admitted()
        else:
            self.finished = True
            self.table.reject(self.leases, False)
            self.future.set_exception(refusal)

    def begin_admitted(self) -> None:
        """Send the try, which the lease table has admitted."""
        table = self.table
        if not (self._waiter_ttl_ms and self._queues):
            self._counted = True
            table.acquiring += len(self.leases)
        table.router.watch_master()
        self.start()
        if self.caller_until is not None:
            self._hurry(self.caller_until)

    def finish(self) -> None:
        self.finished: bool = True
        if self.tick >= 0:
            self.timer.wheel.cancel(self)
        if self._counted:
            self._counted = False
            self.table.acquiring = max(self.table.acquiring - len(self.leases), 0)  # 0 after a failure

    def give_up(self) -> None:
        """Undo what was granted, or may have been: the caller has stopped waiting."""
        self.abandon()

    def abandon(self) -> None:
        """End the try, and undo what was granted, or may have been."""
        if not self.finished:
            self.withdraw()
            self.finish()
            self._undo(self.maybe_executed)
        else:
            release_unwanted(self.table, self.leases)


class PlainAcquire(Acquire):
    """One try to acquire one lock, which is sent as a plain command where the lock type has one."""

    __slots__ = ()

    def encode_first(self, capability: int) -> bytes | None:
        if self._waiter_ttl_ms:
            return None
        lease = self.leases[0]
        return self._lock_type.plain_try(lease, group_of(lease).ttl)
