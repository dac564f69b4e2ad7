"""Waiting for several locks: for each of them in the queue of its name, or for all of them together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.leases import BelowEngine
from wheel_lock.engine.loss_events import HeldBack
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.acquire_all import AcquireAll
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, RequestTimeouts, least_s
from wheel_lock.engine.requests.bulk import Stage
from wheel_lock.engine.requests.bulk_operations import AcquireMany
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


class AcquireEach(AcquireMany, BelowEngine, WheelEntry):
    """Acquire many locks, each on its own, and wait for those that others hold. An error releases all that were granted.

    One bulk try comes first. What it is refused joins the wait queues without another try; the time limit is one entry on
    the wheel for all of them. (Names of which none is wanted without the others are acquired as a multi-lock is.)

    Timer's thread only, but for the constructor. On the wheel it waits for the time limit, or for its next look whether the
    caller is still there. Its future is completed when each lock is granted, or the time is up.

    Attributes:
        granted: The granted lease of each name that was waited for, by the lease of its first try.
    """

    def __init__(self, queues: Registry, options: LockOptions, future: Future[None]) -> None:
        super().__init__(queues.table, options, future)
        self.tick = -1
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self._queues = queues
        self._leases: list[Lease] | None = []  # of the first try; None when that is over
        self._refused: deque[Lease] = deque()  # by the first try; their waiters are still to begin
        self._waiters: dict[Lease, NameWaiter] = {}
        self._limit_s = 0.0
        self._first_until: float | None = None
        self._until: float | None = None
        self.granted: dict[Lease, Lease] = {}

    def begin(self, expected: int, limit_s: float | None = None) -> None:
        """Reserve room for ``expected`` leases; ``limit_s`` is the time limit of the whole call in seconds."""
        timer = self.table.timer
        if limit_s is not None:
            self._limit_s = max([limit_s, *map(least_s, self.table.router.nodes)])
            self._first_until, self._until = timer.now + self._limit_s, timer.now + limit_s
            self.limited = True
        self._schedule()
        super().begin(expected)

    @property
    def _end_of_turn(self) -> float | None:
        """Until when the first try may last, or the waits behind it: one least time of a try for both."""
        return self._until if self._leases is None else self._first_until

    def _schedule(self) -> None:
        timer, when = self.table.timer, self._end_of_turn
        if self._future.may_be_abandoned:
            when = min(timer.now + _LOOK_EVERY_S, math.inf if when is None else when)
        if when is not None:
            timer.wheel.schedule(self, timer.scale.ceil(when))

    def _cancel(self) -> None:
        if self.tick >= 0:
            self.table.timer.wheel.cancel(self)

    def add(self, leases: Sequence[Lease]) -> None:
        if self._leases is not None:
            self._leases.extend(leases)
        super().add(leases)

    def _complete(self) -> None:
        """Take the answers to the first try, and begin to wait for what it was refused."""
        guarded(self, self._wait)

    def _wait(self) -> None:
        leases, self._leases = self._leases or [], None
        self._refused.extend(lease for lease in leases if lease.state is State.REFUSED)
        if self._until is not None:
            if self.table.timer.now >= self._until:
                self._refused.clear()
            self._cancel()
            self._schedule()
        elif self._refused:
            keys = {lease.key for lease in self._refused}
            self.table.refuse_endless(self._refused[0].owner, keys, self._fail, sum(map(len, self._granted)))
        self._in_parts(self._new_waiters(), NameWaiter.begin)
        self._complete_if_done()

    def _new_waiters(self) -> Iterator[NameWaiter]:
        """Make the waiters, one after the other, in the order in which their names were given."""
        while self._refused:
            lease = self._refused.popleft()
            answered: Future[Sequence[Lease] | None] = Future(partial(guarded, self, self._answered, lease))
            waiter = NameWaiter(self._queues, self._options, (lease,), False, True, self._until, answered)
            waiter.began_at = self.table.timer.now
            self._waiters[lease] = waiter
            yield waiter

    def _in_parts(self, waiters: Iterator[NameWaiter], step: Callable[[NameWaiter], object]) -> None:
        """Call ``step`` for each of the waiters, a part of them in each step of the timer's thread."""
        part = list(islice(waiters, _PART))
        for waiter in part:
            step(waiter)
        if len(part) == _PART:
            self.table.timer.post(partial(self._in_parts, waiters, step), self)

    def _answered(self, lease: Lease) -> None:
        """Take the end of the wait for one name; called in the middle of a step of its queue."""
        waiter = self._waiters.pop(lease, None)
        if waiter is None:
            return
        if waiter.future.error is not None:
            self._fail(waiter.future.error)
            return
        granted = waiter.future.result()
        if granted is not None:
            self.granted[lease] = granted[0]
            self._granted.append(granted)
        self._complete_if_done()

    def _complete_if_done(self) -> None:
        if self.error is None and not (self._waiters or self._refused):
            self._cancel()
            super()._complete()

    def on_timeout(self, now: float) -> None:
        """End all waits if the time of the call is up; give up if its event loop was closed, which cancels no task."""
        if self._future.done or self.stage is Stage.UNDOING:
            return  # it has ended in the same step
        if self._future.abandoned:
            self.give_up()
            return
        until = self._end_of_turn
        if until is None or self.table.timer.scale.ceil(until) > self.table.timer.wheel.now:
            self._schedule()
        elif self._leases is not None:
            self.time_up(self._limit_s)
        else:
            self._refused.clear()  # refused a moment ago, if any are left
            self._in_parts(iter(list(self._waiters.values())), NameWaiter.time_up)
            self._complete_if_done()

    def _fail(self, error: Exception) -> None:
        """Complete the call with an error. What was granted is released in a step of its own."""
        if not self._future.done:
            self._stop(error)
            self._refused.clear()
            self.table.timer.post(self.give_up, self)
            self._future.set_exception(error)  # not behind the undoing: it may fail, or never come as the timer stops

    def _undo(self, then: Callable[[], object] = noop, begun: Callable[[], object] = noop) -> None:
        self._cancel()
        self._refused.clear()
        waiters, self._waiters = self._waiters, {}
        super()._undo(then, begun)
        self._in_parts(iter(waiters.values()), NameWaiter.give_up)

    def crashed(self, error: Exception) -> None:
        """Fail the call; its waits, and the leases that it was granted, are undone."""
        self._fail(internal_error(error, None))


class MultiLockWaiter(Waiter):
    """One caller's wait for several exclusive locks together, in the queue of the first name that is held elsewhere.

    It holds nothing meanwhile, and tries for all of them again when that one may be free. So overlapping sets cannot wait
    for each other in a circle.
    """

    __slots__ = ("_held_back",)

    concerns_others = False  # an error may be about another name than its queue's

    @property
    def name(self) -> str | bytes:
        """The name that it waits for: that which its latest try has found held."""
        return next(lease.name for lease in self._template if lease.key == self.key)

    def _another(self, first: Lease) -> Lease:
        lease = super()._another(first)
        lease.on_lost = self._held_back.get(first)
        return lease

    def succeed(self, leases: Sequence[Lease]) -> None:
        for held_back in self._held_back.values():
            held_back.close()  # the losses of earlier tries
            held_back.open()
        super().succeed(leases)

    def _begin(self) -> None:
        """Try for all of them: the answer to another waiter's try for one of them says nothing about the others."""
        if not self.over:
            # A lease that is lost before all are granted was never the caller's. A refused try in parts removes some.
            leases = self._template
            self._held_back = {lease: HeldBack(lease.on_lost) for lease in leases if lease.on_lost is not None}
            for lease, held_back in self._held_back.items():
                lease.on_lost = held_back
            self.try_once(self._tried, waiting=False)

    def prepare(self, tried: Callable[[], object]) -> None:
        """Prepare nothing: the name it waits for, and the number of calls of a try, may change before the next try."""

    def _new_try(self, leases: Sequence[Lease], tried: Callable[[], object], waiting: bool) -> Acquire:
        return AcquireAll(self.table, leases, self.options, Future(partial(guarded, self, tried)))

    def refused_by(self, request: Acquire) -> bool:
        """Wait for the name that is held elsewhere; return True if it is another name than before."""
        assert isinstance(request, AcquireAll)
        if request.blocker is None or request.blocker.key == self.key:
            return False
        self._wait_for(request.blocker.key)
        return True
