"""Bulk operations: acquire many, release many, and the sweep when a context is closed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import Shard, group_of, shard_at, shared_group
from wheel_lock.engine.leases import LeaseTable, leases_of
from wheel_lock.engine.loss_events import HeldBack
from wheel_lock.engine.requests.base import (
    batch_call,
    hold_limit_error,
    least_s,
    needs_of,
    no_answer,
    refused_by_server,
)
from wheel_lock.engine.requests.bulk import BulkBatch, BulkOperation, Stage
from wheel_lock.errors import ContextClosed, LockServerError, LockUnavailable, LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Lease, State
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import GONE, TAKEN
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.rows import Rows, unmade

LEASES_A_TURN = 2000  # whose release begins: two milliseconds of work
_LOSSES_A_TURN = 2000  # of a close that releases nothing: four milliseconds of work
_BATCHES_MEANWHILE = 2  # in flight at a node while others have not begun, so that messages wait no longer for replies


class AcquireBatch(BulkBatch):
    """One call of a bulk acquire."""

    __slots__ = ()

    _bulk: AcquireMany

    def node_on(self, shard: Shard) -> Node:
        return shard.acquiring_node

    def outlasts_refusal(self, *, first: bool) -> bool:
        return self._bulk.limited or not first

    def may_grant(self) -> Sequence[Lease]:
        return self.leases

    def call(self) -> Command:
        params = shared_group(self.leases)
        return batch_call(scripts.ACQUIRE_MANY, params.lock_type, self.leases, params.ttl)

    @property
    def needs(self) -> frozenset[str]:
        return needs_of(group_of(self.leases[0]).lock_type, self.leases[0], renewed=self._bulk.renewed)

    @property
    def may_wait(self) -> bool:
        return not self.sent_asking


class AcquireMany(BulkOperation):
    """Acquire many locks, each on its own. An error releases all that were granted.

    So does, with ``all_or_nothing``, one lock that another owner holds. The caller adds leases while it still makes
    others, and seals the operation after the last.

    Attributes:
        error: The error that ends the operation, or None.
        limited: True if the caller waits, and has a time limit of its own: also for a server that was never there.
        held_back: The callback of the leases, which is opened when the caller has them; None if there is none.
    """

    batch_class: type[AcquireBatch] = AcquireBatch

    def __init__(
        self, table: LeaseTable, options: LockOptions, future: Future[None], all_or_nothing: bool = False
    ) -> None:
        super().__init__(table)
        self._future = future
        self.stage: Stage = Stage.FILLING
        self._all_or_nothing = all_or_nothing
        self._places = 0  # the number of leases that LeaseTable.acquiring still counts
        self._options = options
        self._granted: list[Sequence[Lease]] = []  # by batches
        self._losses_before = sum(table.state.counters.lost.values())
        self.error: Exception | None = None
        self.limited: bool = False
        self.held_back: HeldBack | None = None

    @property
    def refused(self) -> bool:
        """True if none is granted, because one of those that are wanted together is not."""
        return self.stage is Stage.UNDOING and self.error is None

    @property
    def renewed(self) -> bool:
        """True if the leases are renewed."""
        return self._options.renew_every_s is not None

    def batch_done(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        """Handle the outcome of one batch when enough replicas have it, and go on."""
        confirm_grant = shard_at(batch.node).confirm_grant
        if confirm_grant is None or len(failed) == len(batch.leases):
            super().batch_done(batch, failed)
        else:
            confirm_grant(partial(self._replicated, batch, failed))

    def _replicated(self, batch: BulkBatch, failed: dict[int, int | ServerError], error: WheelLockError | None) -> None:
        if batch not in self._in_flight:
            return  # timed out meanwhile, and cleaned up
        if error is None:
            super().batch_done(batch, failed)
        else:
            self.batch_failed(batch, error)

    def take(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        self._give_places_back(len(batch.leases))
        for index, status in failed.items():
            lease = batch.leases[index]
            self.table.reject([lease], isinstance(status, ServerError) and batch.maybe_executed_before)
            if isinstance(status, ServerError):
                self._stop(refused_by_server(status, lease.name))
        granted = [lease for index, lease in enumerate(batch.leases) if index not in failed] if failed else batch.leases
        if granted and self.table.grant(granted, self._options, batch.sent_at):
            self.table.state.counters.acquire.add(self.table.granted_at - batch.sent_at, len(granted))
            self._granted.append(granted)
        elif granted:
            self.table.reject(granted, True)
            granted = []
            late = hold_limit_error(batch.name, self._options, self.table.timer.clock.now() - batch.sent_at)
            if self.table.state.closed:
                self._stop(ContextClosed("The context has been closed"))
            elif late is not None:
                self._stop(late)
        if self._all_or_nothing and len(granted) < len(batch.leases):
            self.stop_sending()

    def miss(self, batch: BulkBatch, error: WheelLockError) -> None:
        batch.withdraw()
        self._give_places_back(len(batch.leases))
        self.table.reject(batch.leases, batch.maybe_executed, batch.node)
        self._stop(error)

    def _stop(self, error: Exception) -> None:
        self.stop_sending()
        self.error = self.error or error

    def finished(self) -> None:
        for backlog in self._backlogs.values():
            backlog.rows.clear()  # no caller gets those that are left: to make all of them would keep renewals waiting
        self.table.reject(list(self.take_remaining()), False)
        self._give_places_back(self._places)
        if self.stage is Stage.UNDOING:
            return
        if self.error is not None:
            self.stage = Stage.UNDOING
            # What was granted is not held any more when the caller receives the error.
            self._undo(begun=partial(self._future.set_exception, self.error))
        elif self.stage is Stage.SEALED and not self._incomplete:
            self._complete()
        else:
            self.stage = Stage.UNDOING
            # The future follows the releases: a caller that retries must not find its own grants on the server.
            self._undo(lambda: self._future.set_result(None))

    def _complete(self) -> None:
        """Complete the future: the caller has the locks."""
        if self.held_back is not None:
            self.held_back.open()
        self._future.set_result(None)

    @property
    def _incomplete(self) -> bool:
        """True if a lease was lost before all were granted that are wanted together."""
        if not self._all_or_nothing or sum(self.table.state.counters.lost.values()) == self._losses_before:
            return False
        return any(lease.state is State.LOST for some in self._granted if not unmade(some) for lease in some)

    def begin(self, expected: int, limit_s: float | None = None) -> None:
        """Reserve room for ``expected`` leases, or stop with an error if the context is closed or full.

        ``limit_s`` is the time limit of the whole operation in seconds; None if only each batch has one.
        """
        if limit_s is not None:
            timer = self.table.timer
            limit_s = max(limit_s, max(map(least_s, self.table.router.nodes)))
            until = timer.now + limit_s + timer.scale.tick_s
            timer.call_at(until, lambda now: self.time_up(limit_s), self.table.state)
        refusal = self.table.admission_error(None, expected)
        if refusal is not None:
            self._stop(refusal)
        else:
            self.table.router.watch_master()
            self._places = expected
            self.table.acquiring += expected

    def _give_places_back(self, places: int) -> None:
        """Count ``places`` leases as no longer being acquired: they are granted, or refused."""
        places = min(places, self._places)
        self._places -= places
        self.table.acquiring = max(self.table.acquiring - places, 0)  # 0 after the death of the thread

    def add(self, leases: Sequence[Lease]) -> None:
        """Add leases, and send as many batches as may be in flight."""
        self.put(leases)
        self.pump()

    def add_rows(self, rows: Sequence[Rows]) -> None:
        """Add rows of leases that all live on one node, and send as many batches as may be in flight."""
        self._backlog_of(self.table.router.shards[0].node).rows.extend(rows)
        self.pump()

    def time_up(self, limit_s: float) -> None:
        """Complete the future at once: its time limit of ``limit_s`` seconds has passed.

        What was granted, or may have been, is released.
        """
        if self._future.done:
            return
        if self.stage is Stage.UNDOING:
            if self.error is None:  # else the caller receives that as soon as all releases have begun
                self._future.set_result(None)  # another owner holds one of the locks
            return
        slow = next(iter(self._in_flight), None)
        error = no_answer(slow.node if slow else self.table.router.shards[0].node, slow.name if slow else None, limit_s)
        self._abandon(error)
        self._stop(error)
        self.finished()

    def _abandon(self, error: WheelLockError) -> None:
        """End the batches in flight, which have no outcome, because of ``error``."""
        in_flight, self._in_flight = self._in_flight, set()
        for batch in in_flight:
            batch.finish()
            self.miss(batch, error)

    def give_up(self) -> None:
        """Release what was granted, or may have been: the caller has stopped waiting."""
        self.stop_sending()
        if self.held_back is not None:
            self.held_back.close()
        self._abandon(WheelLockError("given up"))
        self.finished()
        self._undo()

    def _undo(self, then: Callable[[], object] = noop, begun: Callable[[], object] = noop) -> None:
        granted, self._granted = self._granted, []
        _release_parts(self.table, granted, Future(then), begun)


class ReleaseMany(BulkOperation):
    """Release many leases. Its future receives the loss reasons of those that were not held any more.

    A part of them begins in each turn, and is sent; what has not begun is held, and renewed. No message is read before
    all have begun, so what is posted behind this operation - a close, another acquire, the end of a lock object - finds
    the same as if they had begun in one turn.

    Args:
        table: The leases of the engine.
        parts: The leases; the caller does not change the lists any more. Rows of a later turn are not made in this one.
        future: Receives the loss reasons.
        begun: Called when the release of all of them has begun.
    """

    releases = True

    def __init__(
        self,
        table: LeaseTable,
        parts: Sequence[Sequence[Lease]],
        future: Future[dict[str | bytes, LossReason]],
        begun: Callable[[], object],
    ) -> None:
        super().__init__(table)
        self._future = future
        self.stage: Stage = Stage.FILLING
        self.most_in_flight: int = _BATCHES_MEANWHILE
        self._parts = parts
        self._next = 0  # the first of the parts that has not begun
        self._all_begun = begun
        self._begun: list[Lease] = []  # whose release has begun
        self._placed = 0  # the number of them that are in a backlog, or were
        self._deaths = table.state.deaths
        self._losses: dict[str | bytes, LossReason] = {}
        self._error: WheelLockError | None = None

    def begin_part(self, after: BaseException | None) -> bool:
        """Begin the release of the next leases; return whether others are left. See :meth:`Loop.job`."""
        table, parts, state = self.table, self._parts, self.table.state
        if not (failed := isinstance(after, Exception)):
            if after is not None:
                self._recover()
            if self.stage is not Stage.FILLING:
                return False  # an interruption came when this part had been posted already
        if failed or self._deaths != state.deaths:
            self._end_early()
            return False
        end, left = self._next, float(LEASES_A_TURN)
        if state.closed or table.timer.stopped:
            left = math.inf  # a close goes on without messages, and there may be no other turn
        while end < len(parts) and left > 0:
            left -= len(parts[end])
            end += 1
        table.begin_release_many(chain(*parts[self._next : end]), self._begun, self._losses)
        self.put(self._begun[self._placed :])
        self._placed = len(self._begun)
        self._next = end
        if end == len(parts):
            self.most_in_flight = BulkOperation.most_in_flight
            self.stage = Stage.SEALED
            self._all_begun()
        self.pump()
        return end < len(parts)

    def _recover(self) -> None:
        """After an interruption: put what has begun and was not sent into backlogs again."""
        self._begun = self._take_unsent()
        self._placed = 0
        self._early.clear()
        self._backlogs.clear()
        for lease in self._begun:
            self.table.unhold(lease, None)
        self.stage = Stage.FILLING

    def _take_unsent(self) -> list[Lease]:
        """End the batches that were not sent; return the leases that have begun, and were not sent."""
        for batch in [batch for batch in self._in_flight if not batch.maybe_executed]:
            batch.finish()
            self._ended(batch)
        sent = {lease for batch in self._in_flight for lease in batch.leases}
        return [lease for lease in self._begun if lease.state is State.RELEASING and lease not in sent]

    def _end_early(self) -> None:
        """End after a failure. One of the engine has ended all held leases, one in the call of a request has not."""
        self._error = LockUnavailable("The engine that keeps the locks failed before all locks were released")
        left = list(dict.fromkeys([*self._take_unsent(), *chain(*self._parts[self._next :])]))
        self.table.give_up(left)
        for lease in left:
            self.table.unhold(lease, None)
        self.stop_sending()
        self._all_begun()
        self.pump()

    def lapsed(self, leases: Sequence[Lease]) -> None:
        self.table.mark_lost(leases)
        self._losses.update({lease.name: lease.loss for lease in leases if lease.loss is not None})

    def take(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        if batch.maybe_executed_before:  # "gone" and "taken" are the success of an earlier try, whose reply was lost
            failed = {index: status for index, status in failed.items() if status not in (GONE, TAKEN)}
        if not failed:
            self._release_done(batch.leases)
            return
        self._release_done([lease for index, lease in enumerate(batch.leases) if index not in failed])
        for index, status in failed.items():
            lease = batch.leases[index]
            if isinstance(status, ServerError) and status.code != "WRONGTYPE":
                self.table.release_unknown([lease])
                self._error = refused_by_server(status, lease.name)
                continue
            reason = LossReason.KEY_GONE if status == GONE else LossReason.TAKEN
            self._losses[lease.name] = reason
            self.table.mark_lost([lease], reason)

    def _release_done(self, leases: Sequence[Lease]) -> None:
        self.table.release_done(leases)
        if self.table.listener:
            for lease in leases:
                self.table.listener.ended(lease)

    def miss(self, batch: BulkBatch, error: WheelLockError) -> None:
        self.table.release_unknown(batch.leases)
        self._error = error
        if not isinstance(error, LockServerError):
            batch.backlog.stopped = True  # a server that does not answer gets no more batches

    def finished(self) -> None:
        self.table.release_unknown(list(self.take_remaining()))
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._losses)


def release_many(
    table: LeaseTable,
    leases: Sequence[Lease],
    future: Future[dict[str | bytes, LossReason]],
    begun: Callable[[], object] = noop,
) -> None:
    """Release many leases, see :class:`ReleaseMany`; those that are not held any more are passed over."""
    parts = [leases[start : start + LEASES_A_TURN] for start in range(0, len(leases), LEASES_A_TURN)]
    _release_parts(table, parts, future, begun)


def _release_parts(
    table: LeaseTable,
    parts: Sequence[Sequence[Lease]],
    future: Future[dict[str | bytes, LossReason]],
    begun: Callable[[], object],
) -> None:
    table.timer.job(ReleaseMany(table, parts, future, begun).begin_part, table.state)


def release_unwanted(table: LeaseTable, leases: Sequence[Lease]) -> None:
    """Release those of the leases that are held, which their caller will not have; it hears of no loss of them."""
    held = [lease for lease in leases if lease.state <= EXTENDING]
    for lease in held:
        lease.forget_callback()
    if held:
        release_many(table, held, Future(noop))


class Sweep(BulkOperation):
    """End all leases when a context is closed: batch by batch they are marked lost, and released at the server."""

    most_in_flight = 3  # because a loss is more work than a release

    def __init__(self, table: LeaseTable, future: Future[None]) -> None:
        super().__init__(table)
        self._future = future
        self._left: Iterable[Lease] = []
        leases: list[Lease] = []
        for entry in table.held.entries():
            if type(entry) is Rows and not entry.made:
                self._backlog_of(group_of(entry).renewer.node).rows.append(entry)
            else:
                leases += leases_of(entry)
        self.put(leases)

    def begin_batch(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return the leases to release: none that a message behind the close has ended, by a release or an export."""
        if not group_of(leases[0]).lock_type.unique_tokens:
            now = self.table.timer.clock.now()
            # A lapsed one first, for its own reason.
            self.table.mark_lost(
                [lease for lease in leases if lease.state <= State.EXTENDING and now >= lease.deadline]
            )
            leases = [lease for lease in leases if lease.state <= State.EXTENDING]
        self._lose(leases)
        return [lease for lease in leases if lease.state is State.LOST]

    def _lose(self, leases: Iterable[Lease]) -> None:
        # A lease in the middle of its release is ended by the reply to that.
        self.table.mark_lost([lease for lease in leases if lease.state <= State.EXTENDING], LossReason.CONTEXT_CLOSED)

    def take(self, batch: BulkBatch, failed: dict[int, int | ServerError]) -> None:
        if self.table.keeping is not None:
            ended = [
                lease for index, lease in enumerate(batch.leases) if not isinstance(failed.get(index), ServerError)
            ]
            self.table.keeping.drop(ended)

    def miss(self, batch: BulkBatch, error: WheelLockError) -> None:
        batch.backlog.stopped = True  # the remaining keys expire by themselves

    def stop(self) -> None:
        """Send no more batches: the time limit has passed."""
        self.stop_sending()
        self.finished()

    def finished(self) -> None:
        """End the others without a release, a part in each turn, before all messages."""
        self._left = chain(self._left, self.take_remaining())
        self.table.timer.job(self._end_some, self.table.state)

    def _end_some(self, after: BaseException | None) -> bool:
        if isinstance(after, Exception):
            self._left = []  # after a failure all leases are lost: nothing is left to end but the close
        most = None if self.table.timer.stopped else _LOSSES_A_TURN
        some = list(islice(self._left, most))
        self._lose(some)
        if len(some) == most:
            return True
        self._future.set_result(None)
        return False
