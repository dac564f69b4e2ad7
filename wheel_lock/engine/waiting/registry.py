"""The registry of all wait queues of one engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import BelowEngine, LeaseTable
from wheel_lock.engine.requests.query import look_at
from wheel_lock.engine.waiting.fair_queue import FairWaitQueue
from wheel_lock.engine.waiting.long_waits import LongWaits
from wheel_lock.engine.waiting.wait_queue import BaseWaitQueue, WaitQueue
from wheel_lock.engine.waiting.waiter import FirstWaiter, Waiter
from wheel_lock.errors import ContextClosed, LockUnavailable, TooManyLocks, WheelLockError, copied, internal_error
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import Contention
from wheel_lock.net.pubsub import Listener, PubSub
from wheel_lock.runtime.ends import REFUSALS, End
from wheel_lock.runtime.failures import contain, guarded


class WaitQueueRegistry(BelowEngine):
    """All wait queues of one engine; see :class:`Registry`. Timer's thread only."""

    def __init__(self, table: LeaseTable, pubsub: PubSub) -> None:
        self.table = table
        self.pubsub: PubSub = pubsub
        self._long_waits = LongWaits(table.state, self._longest, partial(look_at, table))
        self._reset()

    def _reset(self) -> None:
        self.queues: dict[bytes, BaseWaitQueue] = {}
        self.in_flight: dict[bytes, FirstWaiter] = {}
        self.pollers: set[Waiter] = set()
        self.waiting: int = 0

    def __len__(self) -> int:
        return len(self.queues)

    @property
    def count(self) -> int:
        """The number of callers that wait."""
        return self.waiting + len(self.pollers)

    def admit(self, name: str | bytes) -> WheelLockError | None:
        """Have one more caller wait; return why it may not, or None if it may."""
        if self.table.state.closed:
            return ContextClosed("The context has been closed", name)
        most = self.table.state.options.max_waiting
        if most is not None and self.count >= most:
            return TooManyLocks(f"{most} callers wait for locks already, which is the limit of this context", name)
        self._long_waits.watch()
        return None

    def waits(self) -> list[tuple[str | bytes, int, float]]:
        """Return for each name its number of waiters and when the longest wait began. From any thread. O(names).

        Times are in seconds of the timer's clock.
        """
        found = [wait for queue in list(self.queues.values()) if (wait := queue.longest()) is not None]
        found += [(waiter.name, 1, waiter.began_at) for waiter in self.pollers.copy()]
        for first in list(self.in_flight.values()):
            if (began_at := first.began_at) is not None:
                found.append((first.name or b"", 1, began_at))
        return found

    def _longest(self) -> list[Waiter]:
        """Return the longest wait for each name. A candidate of an election stands by, and is none."""
        firsts = [next((waiter for waiter in queue if not waiter.stands_by), None) for queue in self.queues.values()]
        pollers = sorted(self.pollers, key=attrgetter("began_at"), reverse=True)  # of one name the last one counts
        return [waiter for waiter in (*pollers, *firsts) if waiter is not None and not waiter.stands_by]

    def find(self, queue_key: bytes) -> BaseWaitQueue | None:
        """Return the queue of ``queue_key`` if it has waiters, or its lock is held by this process; else None."""
        queue = self.queues.get(queue_key)
        return queue if queue is not None and (queue or queue.held_here) else None

    def open(self, waiter: Waiter) -> BaseWaitQueue:
        """Return the queue of the lock that ``waiter`` waits for, after creating it if there is none."""
        queue = self.queues.get(waiter.queue_key)
        if queue is None:
            queue_class = FairWaitQueue if waiter.lock_type.contention is Contention.SERVER_QUEUE else WaitQueue
            queue = self.queues[waiter.queue_key] = queue_class(self, waiter)
            queue.close_later()
        return queue

    def close(self, queue_key: bytes, queue: Listener, channel: bytes) -> None:
        """Drop an empty queue."""
        if self.queues.get(queue_key) is queue:  # else all queues were dropped in the very step in which it came due
            del self.queues[queue_key]
            self.pubsub.ignore(channel, queue)

    def _queue_of(self, lease: Lease) -> BaseWaitQueue | None:
        return self.queues.get(group_of(lease).lock_type.queue_key(lease.key)) if self.queues else None

    def release(self, lease: Lease, send: Callable[[bool], object]) -> None:
        """Send a release by ``send(quiet)``, and behind it, in the same write, the try of a waiter of this process.

        ``quiet`` is True if there is such a try, so that waiters of other processes need not be woken.
        """
        queue = self._queue_of(lease)
        if queue is None:
            send(False)
            return
        try:
            quiet = queue.follows(lease)
        except Exception as error:
            contain(self, queue.follows, error)
            quiet = False
        if quiet:
            queue.owe_wakeup()
        send(quiet)
        guarded(self, queue.ended, lease)

    def ended(self, lease: Lease) -> None:
        if self.queues:
            guarded(self, self._ended, lease)

    def _ended(self, lease: Lease) -> None:
        if (queue := self._queue_of(lease)) is not None:
            queue.ended(lease)

    def listened(self, lease: Lease, woken: int) -> None:
        if (queue := self._queue_of(lease)) is not None:
            guarded(self, queue.listened, woken)

    def crashed(self, error: Exception) -> None:
        """Fail all waiters: any of them may be inconsistent. Held leases are not in doubt."""
        self.table.state.deaths += 1  # seen by a caller whose waiter was lost half-way
        self._fail(internal_error(error, None))
        self.pubsub.end(End.FAILED, error)

    def end(self, how: End, error: Exception) -> None:
        """Fail all waiters, or drop them without completing them where no caller is left."""
        match how:
            case End.CLOSING:
                self._fail(error)
            case End.FAILED | End.DIED:
                self._fail(LockUnavailable(REFUSALS[how]))
            case End.EXITING:
                for waiter in self._drain():
                    waiter.over = True
            case End.FORKED:
                self._reset()

    def _fail(self, error: Exception) -> None:
        for waiter in self._drain():
            waiter.fail(copied(error))

    def _drain(self) -> list[Waiter]:
        waiters = list(self.pollers)
        wheel = self.table.timer.wheel
        for queue in self.queues.values():
            waiters.extend(queue.drain())
        for first in [first.as_waiter() for first in list(self.in_flight.values())]:
            waiters.append(first)
            waiters.extend(first.take_followers())
        self.pollers.clear()
        self.queues.clear()
        self.waiting = 0
        for waiter in waiters:
            wheel.cancel(waiter)
            waiter.queue = None
            waiter.abort()
        return waiters
