"""Bulk acquires that wait for each name in the queue of that name.

One bulk try comes first. What it is refused joins the wait queues without another try; the time limit is one entry on the
wheel for all of them. (Names of which none is wanted without the others are acquired as a multi-lock is.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.loss_events import HeldBack
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, RequestTimeouts, least_s
from wheel_lock.engine.requests.bulk import BulkCall
from wheel_lock.engine.requests.bulk_operations import AcquireMany, release_many, release_unwanted
from wheel_lock.engine.waiting.waiter import Registry, Waiter
from wheel_lock.errors import internal_error
from wheel_lock.lease import Lease, State
from wheel_lock.options import LockOptions
from wheel_lock.runtime.failures import guarded
from wheel_lock.wheel import WheelEntry

_LOOK_EVERY_S = 1.0  # for the end of an event loop, during which locks are held that no result will name
_PART = 100  # waiters that begin, or end, in one step of the timer's thread, so that renewals come in between


class NameWaiter(Waiter):
    """The wait for one name of a bulk acquire, which was refused it. Its time limit is kept by the bulk acquire."""

    __slots__ = ()

    def _begin(self) -> None:
        if not self.over:
            self._attempts = 1  # that of the bulk acquire: each further try has a token of its own
            self._join_queue()

    def _join_queue(self) -> None:
        if self._admitted():
            self._queues.open(self).join(self)

    def _refuse_endless(self) -> None:
        """Do nothing: the bulk acquire has asked about all of its names together."""

    def time_up(self) -> None:
        """End the wait as its queue ends those whose time is up: perhaps after one last try."""
        if self.queue is not None:
            self.queue.on_waiter_timeout(self)


class AcquireEach(BulkCall, WheelEntry):
    """Acquire many locks, each on its own, and wait for those that others hold. An error releases all that were granted.

    Timer's thread only, but for the constructor. On the wheel it waits for the time limit, or for its next look whether the
    caller is still there.

    Args:
        queues: The wait queues of the engine.
        options: How to acquire.
        future: Completed when each lock is granted, or the time is up.

    Attributes:
        granted: The granted lease of each name that was waited for, by the lease of its first try.
        held_back: As for :class:`AcquireMany`.
    """

    __slots__ = (
        "_first",
        "_first_until",
        "_future",
        "_held",
        "_leases",
        "_limit_s",
        "_options",
        "_over",
        "_queues",
        "_refused",
        "_until",
        "_waiters",
        "granted",
        "group",
        "held_back",
        "table",
    )

    def __init__(self, queues: Registry, options: LockOptions, future: Future[None]) -> None:
        self.tick = -1
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self.table: LeaseTable = queues.table
        self._queues = queues
        self._options = options
        self._future = future
        answered: Future[None] = Future(partial(guarded, self, self._first_answered))
        self._first: AcquireMany | None = AcquireMany(self.table, options, answered)
        self._leases: list[Lease] = []
        self._held: list[Lease] = []  # granted by the first try
        self._refused: list[Lease] = []  # by the first try; their waiters are still to begin
        self._waiters: dict[Lease, NameWaiter] = {}
        self._limit_s = 0.0
        self._first_until: float | None = None
        self._until: float | None = None
        self._over = False
        self.granted: dict[Lease, Lease] = {}
        self.held_back: HeldBack | None = None

    def begin(self, expected: int, limit_s: float | None = None) -> None:
        """Reserve room for ``expected`` leases; ``limit_s`` is the time limit of the whole call in seconds."""
        assert self._first is not None
        timer = self.table.timer
        if limit_s is not None:
            self._limit_s = max([limit_s, *map(least_s, self.table.router.nodes)])
            self._first_until, self._until = timer.now + self._limit_s, timer.now + limit_s
            self._first.limited = True
        self._schedule()
        self._first.begin(expected)

    @property
    def _end_of_turn(self) -> float | None:
        """Until when the first try may last, or the waits behind it: one least time of a try for both."""
        return self._until if self._first is None else self._first_until

    def _schedule(self) -> None:
        timer, when = self.table.timer, self._end_of_turn
        if self._future.may_be_abandoned:
            when = min(timer.now + _LOOK_EVERY_S, math.inf if when is None else when)
        if when is not None:
            timer.wheel.schedule(self, timer.scale.ceil(when))

    def add(self, leases: Sequence[Lease]) -> None:
        """Add leases; see :class:`AcquireMany`."""
        if self._over or self._first is None:
            self.table.reject(leases, False)
            return
        self._leases.extend(leases)
        self._first.add(leases)

    def seal(self) -> None:
        """Declare that all leases have been added."""
        if self._first is not None:
            self._first.seal()

    def _first_answered(self) -> None:
        """Take the answer to the bulk try, and begin to wait for what it was refused."""
        first = self._first
        if first is None or self._over:
            return
        if first.error is not None:
            self._fail(first.error)
            return
        self._first = None  # its future refers to this object: a cycle
        self._held = first.take_granted()
        self._refused = [lease for lease in self._leases if lease.state is State.REFUSED]
        self._leases.clear()
        if self._until is not None:
            if self.table.timer.now >= self._until:
                self._refused.clear()
            if self.tick >= 0:
                self.table.timer.wheel.cancel(self)
            self._schedule()
        elif self._refused:
            keys = {lease.key for lease in self._refused}
            self.table.refuse_endless(self._refused[0].owner, keys, self._fail, len(self._held))
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin to wait for the next names, in the order in which they were given."""
        if self._over:
            return
        part, self._refused = self._refused[:_PART], self._refused[_PART:]
        for lease in part:
            answered: Future[Sequence[Lease] | None] = Future(partial(guarded, self, self._answered, lease))
            waiter = NameWaiter(self._queues, self._options, (lease,), False, True, self._until, answered)
            waiter.began_at = self.table.timer.now
            self._waiters[lease] = waiter
            waiter.begin()
        if self._refused:
            self.table.timer.post(self._begin_some, self)
        else:
            self._complete_if_done()

    def _answered(self, lease: Lease) -> None:
        """Take the end of the wait for one name; called in the middle of a step of its queue."""
        waiter = self._waiters.pop(lease, None)
        if waiter is None:
            return
        if waiter.future.error is not None:
            self._fail(waiter.future.error)
            return
        granted = waiter.future.result()
        if granted is not None and self._over:
            release_unwanted(self.table, granted)  # given up, and granted before its turn to be undone came
        elif granted is not None:
            self.granted[lease] = granted[0]
        self._complete_if_done()

    def _complete_if_done(self) -> None:
        if not (self._over or self._waiters or self._refused):
            self._end()
            if self.held_back is not None:
                self.held_back.open()
            self._future.set_result(None)

    def on_timeout(self, now: float) -> None:
        """End all waits if the time of the call is up; give up if its event loop was closed, which cancels no task."""
        if self._over:
            return
        if self._future.abandoned:
            self.give_up()
            return
        until = self._end_of_turn
        if until is None or self.table.timer.scale.ceil(until) > self.table.timer.wheel.now:
            self._schedule()
            return
        if self._first is not None:
            self._first.time_up(self._limit_s)
            return
        self._refused.clear()  # refused a moment ago, if any are left
        self._end_some(list(self._waiters.values()))
        self._complete_if_done()

    def _end_some(self, waiters: list[NameWaiter]) -> None:
        for waiter in waiters[:_PART]:
            waiter.time_up()
        if waiters[_PART:] and not self._over:
            self.table.timer.post(partial(self._end_some, waiters[_PART:]), self)

    def _end(self) -> None:
        self._over = True
        if self.tick >= 0:
            self.table.timer.wheel.cancel(self)

    def _fail(self, error: Exception) -> None:
        """Complete the call with an error. What was granted is released in a step of its own."""
        if not self._over:
            self._end()
            self.table.timer.post(self._undo, self)
            self._future.set_exception(error)

    def give_up(self) -> None:
        """Release what was granted, or may have been: the caller has stopped waiting."""
        self._end()
        self._undo()

    def _undo(self) -> None:
        first, self._first = self._first, None
        if self.held_back is not None:
            self.held_back.close()
        if first is not None:
            first.give_up()
        held = [*self._held, *self.granted.values()]
        self._held.clear()
        release_many(self.table, held, Future(noop))
        self._refused.clear()
        self._give_up_some()

    def _give_up_some(self) -> None:
        for lease in list(self._waiters)[:_PART]:
            waiter = self._waiters.pop(lease, None)
            if waiter is not None:
                waiter.give_up()
        if self._waiters:
            self.table.timer.post(self._give_up_some, self)

    def crashed(self, error: Exception) -> None:
        """Fail the call; its waits, and the leases that it was granted, are undone."""
        self._fail(internal_error(error, None))
