"""All the queues of one engine: which one a caller stands in, and what is passed on to whom."""

from __future__ import annotations

from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.fair_queue import FairWaitQueue
from wheel_lock.engine.waiting.wait_queue import BaseWaitQueue, WaitQueue
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.errors import ContextClosed, TooManyLocks, WheelLockError, copied, internal_error
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import Contention
from wheel_lock.net.pubsub import Listener, PubSub
from wheel_lock.runtime.failures import guarded


class WaitQueueRegistry:
    """All the queues of one engine."""

    def __init__(self, table: LeaseTable, wakeups: PubSub) -> None:
        self.table = table
        self.pubsub = wakeups
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Start empty, without a word: in a forked child."""
        self._queues: dict[bytes, BaseWaitQueue] = {}
        self.in_flight: dict[bytes, Waiter] = {}  # for the first time, and ready to wait
        self.pollers: set[Waiter] = set()
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def count(self) -> int:
        """How many callers wait."""
        return self.waiting + len(self.pollers)

    def find(self, queue_key: bytes) -> BaseWaitQueue | None:
        """Return a queue if there is one to stand in: somebody does, or somebody of this process holds the lock."""
        queue = self._queues.get(queue_key)
        return queue if queue is not None and (queue or queue.held_here) else None

    def open(self, waiter: Waiter) -> BaseWaitQueue:
        """Return the queue that ``waiter`` stands in or is to stand in, a new one where there is none."""
        queue = self._queues.get(waiter.queue_key)
        if queue is None:
            queue_class = FairWaitQueue if waiter.lock_type.contention is Contention.SERVER_QUEUE else WaitQueue
            queue = self._queues[waiter.queue_key] = queue_class(self, waiter)
            queue.close_later()
        return queue

    def close(self, place: bytes, queue: Listener, channel: bytes) -> None:
        """Drop an empty queue."""
        if self._queues.get(place) is queue:  # else all waiters were dropped in the very step in which it came due
            del self._queues[place]
            self.pubsub.ignore(channel, queue)

    def _queue_of(self, lease: Lease) -> BaseWaitQueue | None:
        return self._queues.get(group_of(lease).lock_type.queue_key(lease.key)) if self._queues else None

    def admission_error(self, name: str | bytes) -> WheelLockError | None:
        """Return why one more may not wait, or None if it may."""
        if self.table.state.closed:
            return ContextClosed("The context has been closed", name)
        most = self.table.state.options.max_waiting
        if most is not None and self.count >= most:
            return TooManyLocks(f"{most} callers wait for locks already, which is the limit of this context", name)
        return None

    def ended(self, lease: Lease) -> None:
        """A lease of this process has ended; if it was released, the release has been sent."""
        if self._queues:
            guarded(self, self._ended, lease)

    def _ended(self, lease: Lease) -> None:
        if (queue := self._queue_of(lease)) is not None:
            queue.ended(lease)

    def listened(self, lease: Lease, woken: int) -> None:
        """The release of a lease has woken so many listeners."""
        if (queue := self._queue_of(lease)) is not None:
            guarded(self, queue.listened, woken)

    @property
    def above(self) -> EngineState:
        """The engine."""
        return self.table.state

    def crashed(self, error: Exception) -> None:
        """End all waits: the library's own code has failed in the middle of one. What is held is not in doubt."""
        self.table.state.deaths += 1  # a caller whose wait has got lost half-way looks at this
        self.fail(internal_error(error, None))
        self.pubsub.restart(error)

    def fail(self, error: Exception) -> None:
        """Nobody will get anything any more."""
        waiters = self._drain()
        for waiter in waiters:
            waiter.fail(copied(error))

    def drop_all(self) -> None:
        """Nobody will get anything any more, and nobody is told: at the end of the interpreter it would only be noise."""
        for waiter in self._drain():
            waiter.over = True

    def _drain(self) -> list[Waiter]:
        waiters = list(self.pollers)
        wheel = self.table.timer.wheel
        for queue in self._queues.values():
            waiters.extend(queue.drain())
        for first in list(self.in_flight.values()):
            waiters.append(first)
            waiters.extend(first.take_followers() or ())
        self.pollers.clear()
        self._queues.clear()
        self.waiting = 0
        for waiter in waiters:
            wheel.cancel(waiter)
            waiter.queue = None
            waiter.abort()
        return waiters
