"""One caller's wait for one lock, from its first try to the grant, the refusal, or the end of his patience."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, acquiring_node_of, least_s, no_answer
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.engine.state import EngineState
from wheel_lock.errors import WheelLockError, copied, internal_error, quoted
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.base import Contention, LockType
from wheel_lock.net.node import Node
from wheel_lock.net.pubsub import Listener, PubSub
from wheel_lock.net.request_queue import Parking
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import lease_args
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.wheel import WheelEntry

logger = logging.getLogger("wheel_lock")

_LEAST_WAITER_TTL_S = 0.1
IS_OVER: Callable[[Waiter], bool] = attrgetter("over")


class QueueOfWaiters(Protocol):
    """The waiters of one name, as each of them sees it; see queue.py and queue.py."""

    def join(self, waiter: Waiter) -> None: ...
    def leave(self, waiter: Waiter) -> None: ...
    def on_waiter_timeout(self, waiter: Waiter) -> None: ...
    def granted_to(self, lease: Lease) -> None:
        """Note that the lock was granted to this process."""
        ...


class Registry(Protocol):
    """The wait queues of one engine, as waiters and queues see them; see queues.py.

    Attributes:
        table: The leases of the engine.
        wakeups: The subscriptions on which waiters are woken.
        asking: By name, the waiter that makes the first attempt, and can wait.
        pollers: Waiters that poll.
        waiting: How many waiters are in queues.
    """

    table: LeaseTable
    pubsub: PubSub
    in_flight: dict[bytes, Waiter]
    pollers: set[Waiter]
    waiting: int

    def find(self, place: bytes) -> QueueOfWaiters | None: ...
    def open(self, waiter: Waiter) -> QueueOfWaiters: ...
    def close(self, place: bytes, queue: Listener, channel: bytes) -> None: ...
    def admission_error(self, name: str | bytes) -> WheelLockError | None: ...
    def crashed(self, error: Exception) -> None:
        """End all waits: the library's own code has failed in the middle of one."""
        ...


class Waiter(WheelEntry):
    """One caller's wait for one lock, from its first try to the grant, the refusal, or the end of his patience.

    It completes with what was granted, or with None where it was not granted in time. On the wheel it waits for the end
    of its time, or, where it polls, for its next try. Timer's thread only, but for the constructor.

    Args:
        queues: The wait queues of the engine.
        options: How to acquire; whether it may wait and how long are given apart.
        leases: The lease of the first try, or several of one group that are acquired together. Each later try gets its
            own, with a token of its own unless that was given, so that what cleans up after a try whose outcome is not
            known cannot meet the grant of the next.
        token_given: The caller has chosen the token.
        blocking: Whether to wait.
        until: When to stop waiting, in seconds of the timer's clock; None for never.
        operation: What to complete.
    """

    __slots__ = (
        "_attempts",
        "_blocking",
        "_followers",
        "_lock_type",
        "_queues",
        "_request",
        "_template",
        "_token_given",
        "_warned",
        "began_at",
        "future",
        "group",
        "key",
        "last",
        "leases",
        "options",
        "over",
        "queue",
        "queue_key",
        "table",
        "until",
    )

    def __init__(
        self,
        queues: Registry,
        options: LockOptions,
        leases: Sequence[Lease],
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> None:
        self.tick = -1
        self.group = REQUEST_TIMEOUTS
        self._queues = queues
        self.table = queues.table
        self._template = leases
        self._token_given = token_given
        self._blocking = blocking
        self._request: Acquire | None = None
        self._followers: Parking[Waiter] | None = None  # who came while it asked for the first time
        self._attempts = 0
        self._warned = False
        self._lock_type: LockType = group_of(leases[0]).lock_type
        self.options = options
        self.until = until
        self.future = future
        self.leases: Sequence[Lease] | None = None
        self.queue: QueueOfWaiters | None = None
        self.over = False
        self.last = False  # its time is up; the try that is under way is the last
        self.began_at = 0.0
        self._wait_for(leases[0].key)

    def _wait_for(self, key: bytes) -> None:
        """Note what it waits for: the lock's name as the server knows it, and in which queue."""
        self.key = key
        self.queue_key = self._lock_type.queue_key(key)

    @property
    def lock_type(self) -> LockType:
        """What kind of lock it waits for."""
        return self._lock_type

    @property
    def concerns_others(self) -> bool:
        """Whether what keeps it from asking the server keeps those from it who wait behind it."""
        return True

    @property
    def _polls(self) -> bool:
        return self.options.retry_every_s is not None

    @property
    def waiter_ttl_s(self) -> float:
        """For how long the server is to remember that it waits, in seconds: it asks three times as often."""
        waiter_ttl_s = max(min(self.table.state.options.fallback_s, self.options.timeout_s), _LEAST_WAITER_TTL_S)
        return max(waiter_ttl_s, 2 * (self.options.retry_every_s or 0.0))

    def begin(self) -> None:
        """Begin to wait; a failure of the library's own code ends the waits and nothing else."""
        guarded(self, self._begin)

    def _begin(self) -> None:
        """Try, or join the queue if there is one, or wait for what somebody hears who asks just now."""
        if self.over:
            return
        self.began_at = self.table.timer.now
        self.table.timer.wheel.cancel(self)
        contention = self._lock_type.contention
        if not self._blocking or self._polls or contention is Contention.SERVER_QUEUE:
            self.try_once(self._tried, waiting=self._blocking and self._lock_type.registers_waiters)
            return
        wait_queues = self._queues
        if wait_queues.find(self.queue_key) is not None:
            self._stand_in()
            return
        ahead = self if contention is Contention.SHARED else wait_queues.in_flight.setdefault(self.queue_key, self)
        if ahead is self:
            self.try_once(self._answered, waiting=False)
            return
        if ahead._followers is None:
            ahead._followers = Parking(IS_OVER)
        ahead._followers.append(self)
        if self.until is not None:
            self.wait_until(max(self.until, self.began_at + least_s(self.node)))

    def try_once(self, tried: Callable[[], object], *, waiting: bool) -> None:
        """Ask the server once; ``tried()`` is called when it has answered, or will not."""
        future: Future[bool] = Future(partial(guarded, self, tried))
        leases = self._template if self._attempts == 0 else [self._another(lease) for lease in self._template]
        self._request = request = self._new_request(leases, future, round(self.waiter_ttl_s * 1000) if waiting else 0)
        request.caller_until = self.until
        if self._blocking:
            request.on_found = self.finds
        self._attempts += 1
        request.begin()

    def _new_request(self, leases: Sequence[Lease], future: Future[bool], waiter_ttl_ms: int) -> Acquire:
        return Acquire(self.table, leases, self.options, future, waiter_ttl_ms=waiter_ttl_ms)

    def _another(self, first: Lease) -> Lease:
        wire = first.lease_args
        if not self._token_given:
            wire = lease_args(first.key, self._lock_type.next_token(first.token))
        group = self.table.router.group_of(group_of(first), first.key)
        return Lease(first.name, wire, group, first.owner, first.on_lost, first.call_site)

    @property
    def request(self) -> Acquire:
        """The latest try."""
        assert self._request is not None
        return self._request

    def _answered(self) -> None:
        """The first try of one that may wait: what it has heard goes for those who came meanwhile, too."""
        behind, request = self.take_followers(), self.request
        future = request.future
        self._tried()
        if behind:
            if future.error is not None and not request.cut_short:
                for waiter in behind:
                    waiter.fail(copied(future.error))
                return
            if not request.cut_short and future.result():
                self._queues.open(behind[0]).granted_to(request.lease)
            for waiter in behind:
                waiter.begin()

    def take_followers(self) -> list[Waiter] | None:
        """It asks for the first time no more, so it stands in nobody's way; return who came behind."""
        asking = self._queues.in_flight
        if asking.get(self.queue_key) is self:
            del asking[self.queue_key]
        behind, self._followers = self._followers, None
        return None if behind is None else behind.take_all()

    def _tried(self) -> None:
        if self.over:
            return
        request = self.request
        if request.future.error is not None:
            self.fail(request.future.error)
        elif request.future.result():
            self.succeed(request.leases)
        elif not self._blocking:
            self.refuse()
        elif self._polls:
            self._poll()
        else:
            self.refused_by(request)
            self._stand_in()

    def finds(self, found: str) -> None:
        """A key of another type is in the way, which expires: say so, once a wait."""
        if not self._warned:
            self._warned = True
            NOTIFIER.post(
                logger.warning,
                "waiting for the lock %s: its key holds a %s, where this kind of lock keeps a %s",
                quoted(self._template[0].name),
                found,
                self._lock_type.key_type,
            )

    def refused_by(self, request: Acquire) -> bool:
        """A try was refused; return whether it has to wait for something else than it thought."""
        return False

    def _stand_in(self) -> None:
        if self._may_wait():
            if self.until is not None:
                self.wait_until(self.until)
            self._queues.open(self).join(self)

    def _may_wait(self) -> bool:
        refusal = self._queues.admission_error(self.key)
        if refusal is not None:
            self.fail(refusal)
        return refusal is None

    def _poll(self) -> None:
        now, pause_s = self.table.timer.clock.now(), self.options.retry_every_s
        assert pause_s is not None
        if self._attempts == self.options.max_attempts or (self.until is not None and now >= self.until):
            self.refuse()
            return
        if self not in self._queues.pollers:
            if not self._may_wait():
                return
            self._queues.pollers.add(self)
        # Cut short so that the last try comes when the time is up.
        self.wait_until(now + pause_s if self.until is None else min(now + pause_s, self.until))

    def wait_until(self, when: float) -> None:
        """Come due on the wheel, where it is not, at ``when``, in seconds of the timer's clock."""
        self.table.timer.wheel.schedule(self, self.table.timer.scale.ceil(when))

    def on_timeout(self, now: float) -> None:
        """The wheel says that the time has come."""
        if self in self.table.timer.wheel:
            return  # it has begun anew meanwhile: who was ahead of it was late in the same step
        if self.queue is not None:
            self.queue.on_waiter_timeout(self)
        elif not self.over and self._request is None:
            self.fail_unanswered()  # it stands behind one who asks for the first time
        elif not self.over and self._polls:  # else it has begun to ask in the same step, which ends by itself
            # Its second try asks in a form that tells what kind of key is in the way.
            self.try_once(self._tried, waiting=self._lock_type.registers_waiters or self._attempts == 1)

    @property
    def above(self) -> EngineState:
        """The engine."""
        return self.table.state

    def crashed(self, error: Exception) -> None:
        """End all waits: the library's own code has failed in the middle of one."""
        self._queues.crashed(error)
        self.fail(internal_error(error, self.key))  # it may not have been in a queue

    def _end(self) -> None:
        self.over = True
        self.queue = None
        if self.tick >= 0:
            self.table.timer.wheel.cancel(self)
            self._queues.pollers.discard(self)

    def succeed(self, leases: Sequence[Lease]) -> None:
        """It is granted."""
        self._end()
        self._request = None  # it refers to this, too, and the cycle would be left to the garbage collector
        self.leases = leases
        self.future.set_result(leases)

    def refuse(self) -> None:
        """It is not granted in time."""
        self._end()
        self._take_word_back()
        self._request = None
        self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        """The server could not be asked. (By another of the same queue, perhaps, so a try may be under way.)"""
        self._end()
        self.abort()
        self.future.set_exception(error)

    def fail_unanswered(self) -> None:
        """Its time is up, and what it would have heard from somebody else's try has not come."""
        waited_s = self.table.timer.now - self.began_at
        self.fail(no_answer(self.node, self._template[0].name, waited_s))

    @property
    def node(self) -> Node:
        """Where its latest try has gone, or its first will go."""
        return acquiring_node_of(self._template[0]) if self._request is None else self._request.node

    def _take_word_back(self) -> None:
        """Wait no more, also in the eyes of the server. (What is under way is cleaned up by itself.)"""
        request = self._request
        if request is None or not (request.finished and self._blocking and self._lock_type.registers_waiters):
            return
        if request.attempts or self._attempts > 1:  # else nothing was sent
            self.table.clean_up(request.leases)

    def give_up(self) -> None:
        """The caller waits no more, or never hears: undo what was granted, or may have been."""
        if self.over:
            held = [lease for lease in self.leases or () if lease.state <= EXTENDING]
            release_many(self.table, held, Future(noop))
            return
        queue = self.queue
        self._end()
        if queue is not None:
            queue.leave(self)
        self.abort()
        if self._queues.in_flight.get(self.queue_key) is self:
            for waiter in self.take_followers() or ():
                waiter.begin()

    def abort(self) -> None:
        """End the try that is under way, if there is one, and undo what it may have been granted."""
        request = self._request
        if request is not None:
            self._take_word_back()
            request.future = Future(noop)
            under_way = not request.finished
            request.give_up()
            if under_way and not request.attempts:
                self._take_word_back()  # that of the tries before it: it has never been sent, and so undoes nothing
            self._request = None
