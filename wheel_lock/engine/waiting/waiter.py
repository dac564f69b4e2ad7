"""One caller's wait for one lock, from its first try to the grant, the refusal, or its time limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import acquiring_node_of, group_of
from wheel_lock.engine.leases import BelowEngine, LeaseTable
from wheel_lock.engine.requests.acquire import Acquire, PlainAcquire
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, RequestTimeouts, end_of_try, least_s, no_answer
from wheel_lock.engine.requests.bulk_operations import release_unwanted
from wheel_lock.errors import LockAlreadyHeld, WheelLockError, copied, internal_error, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import Contention, LockType
from wheel_lock.net.connector import is_refused
from wheel_lock.net.node import Node
from wheel_lock.net.pubsub import Listener, PubSub
from wheel_lock.net.request_queue import Parking
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import lease_args
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.wheel import WheelEntry

logger: logging.Logger = logging.getLogger("wheel_lock")

_LEAST_WAITER_TTL_S = 0.1
IS_OVER: Callable[[Waiter], bool] = attrgetter("over")


class QueueOfWaiters(Protocol):
    """The wait queue of one name, as its waiters see it; implemented by ``BaseWaitQueue``."""

    def join(self, waiter: Waiter) -> None: ...
    def remove(self, waiter: Waiter) -> Waiter: ...
    def on_waiter_timeout(self, waiter: Waiter) -> None: ...
    def granted_to(self, lease: Lease) -> None: ...


class FirstWaiter(Protocol):
    """The maker of the first try of a name: a ``Waiter``, or a ``FirstTry``, which becomes one."""

    @property
    def name(self) -> str | bytes | None: ...
    @property
    def began_at(self) -> float | None: ...
    def as_waiter(self) -> Waiter: ...


class Registry(FailureDomain, Protocol):
    """The wait queues of one engine, as waiters and queues see them; implemented by ``WaitQueueRegistry``.

    Attributes:
        table: The leases of the engine.
        pubsub: The subscriptions that wake waiters.
        in_flight: By queue key, the waiter that makes the first try while there is no queue.
        pollers: The waiters that poll.
        waiting: The number of waiters in queues.
    """

    table: LeaseTable
    pubsub: PubSub
    in_flight: dict[bytes, FirstWaiter]
    pollers: set[Waiter]
    waiting: int

    @property
    def queues(self) -> Mapping[bytes, QueueOfWaiters]: ...  # by queue key
    def admit(self, name: str | bytes) -> WheelLockError | None: ...
    def find(self, queue_key: bytes) -> QueueOfWaiters | None: ...
    def open(self, waiter: Waiter) -> QueueOfWaiters: ...
    def close(self, queue_key: bytes, queue: Listener, channel: bytes) -> None: ...


class Waiter(BelowEngine, WheelEntry):
    """One caller's wait for one lock, from its first try to the grant, the refusal, or its time limit.

    It completes with the granted leases, or with None if they are not granted in time. On the wheel it waits for its time
    limit, or, if it polls, for its next try. Timer's thread only, but for the constructor.

    Args:
        queues: The wait queues of the engine.
        options: How to acquire; ``blocking`` and ``until`` say whether it waits, and for how long.
        leases: The lease of the first try, or several of one group that are acquired together. Each later try gets its
            own, with a token of its own unless that was given, so that the clean-up of a try with an unknown outcome
            cannot release the grant of the next.
        token_given: True if the caller has chosen the token.
        blocking: True if it waits after a refusal.
        until: When to stop waiting, in seconds of the timer's clock; None for never. A last try may take a little longer.
        future: Set to the granted leases, or to None.

    Attributes:
        concerns_others: True if an error that ends its try ends the waits behind it in the queue, too.
    """

    __slots__ = (
        "_attempts",
        "_blocking",
        "_followers",
        "_prepared",
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
        "lock_type",
        "options",
        "over",
        "queue",
        "queue_key",
        "table",
        "until",
    )

    concerns_others = True

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
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self._queues = queues
        self.table: LeaseTable = queues.table
        self._template = leases
        self._token_given = token_given
        self._blocking = blocking
        self._request: Acquire | None = None
        self._prepared: Acquire | None = None  # the next try
        self._followers: Parking[Waiter] | None = None  # waiters that came during its first try
        self._attempts = 0
        self._warned = False
        self.lock_type: LockType = group_of(leases[0]).lock_type
        self.options: LockOptions = options
        self.until: float | None = until
        self.future: Future[Sequence[Lease] | None] = future
        self.leases: Sequence[Lease] | None = None
        self.queue: QueueOfWaiters | None = None
        self.over: bool = False
        self.last: bool = False  # its time is up
        self.began_at: float = 0.0
        self._wait_for(leases[0].key)

    def _wait_for(self, key: bytes) -> None:
        """Wait for the lock with this key from now on."""
        self.key: bytes = key
        self.queue_key: bytes = self.lock_type.queue_key(key)

    @property
    def name(self) -> str | bytes:
        """The lock's name as the caller gave it; the first of several that are acquired together."""
        return self._template[0].name

    @property
    def stands_by(self) -> bool:
        """True if its caller is content to wait."""
        return self._template[0].owner.stands_by

    @property
    def _polls(self) -> bool:
        return self.options.retry_every_s is not None

    @property
    def waiter_ttl_s(self) -> float:
        """The time-to-live of its registration at the server, in seconds: it tries three times as often."""
        waiter_ttl_s = max(min(self.table.state.options.fallback_s, self.options.timeout_s), _LEAST_WAITER_TTL_S)
        return max(waiter_ttl_s, 2 * (self.options.retry_every_s or 0.0))

    @property
    def _waiter_ttl_ms(self) -> int:
        return round(self.waiter_ttl_s * 1000)

    def begin(self) -> None:
        """Begin to wait; a failure of the library's own code ends waits and nothing else."""
        self.began_at = self.table.timer.now
        guarded(self, self._begin)

    def _begin_again(self, *, answered: bool) -> None:
        """Begin behind the try that it has shared, which was ``answered`` or not. Its time goes on."""
        self.table.timer.wheel.cancel(self)
        if answered and self._time_is_up:
            self.refuse()
        elif (end := self._end_of_try) is None or self.table.timer.now < end:
            guarded(self, self._begin)
        else:
            self.fail_unanswered()

    def _begin(self) -> None:
        """Join the queue if there is one, or follow the waiter whose first try is in flight, else try."""
        if self.over:
            return
        contention = self.lock_type.contention
        if not self._blocking or self._polls or contention is Contention.SERVER_QUEUE:
            self.try_once(self._tried, waiting=self._blocking and self.lock_type.registers_waiters)
            return
        wait_queues = self._queues
        if wait_queues.find(self.queue_key) is not None:
            self._join_queue()
            return
        first = self if contention is Contention.SHARED else wait_queues.in_flight.setdefault(self.queue_key, self)
        if first is self:
            self.try_once(self._answered, waiting=False)
            return
        ahead = first.as_waiter()
        if ahead._followers is None:
            ahead._followers = Parking(IS_OVER)
        ahead._followers.append(self)
        if (end := self._end_of_try) is not None:
            self.wait_until(end)

    @property
    def _end_of_try(self) -> float | None:
        """When a try that begins now has to end; None for its usual limit. The first counts from the begin of the wait."""
        if self.until is None or self.last:
            return self.until
        return end_of_try(self.until, self.table.timer.now if self._attempts else self.began_at, self.node)

    @property
    def _time_is_up(self) -> bool:
        return self.until is not None and self.table.timer.now >= self.until

    def begin_last(self) -> None:
        """Note that its time is up. It has the least time of a try more, however many tries there are in that."""
        if not self.last:
            self.last = True
            self.until = self.table.timer.now + least_s(self.node)

    def as_waiter(self) -> Waiter:
        return self

    def take_over(self, first: Acquire, began_at: float) -> None:
        """Go on with a first try that was begun without this waiter, at ``began_at``."""
        self._request = first
        self._attempts = 1
        self.began_at = began_at
        first.future = Future(partial(guarded, self, self._answered))
        if self._blocking:
            first.on_found = self._warn_of_other_type

    def try_once(self, tried: Callable[[], object], *, waiting: bool) -> None:
        """Send one acquire, ``waiting`` with a registration if the lock type has them; call ``tried()`` when it is done."""
        request = self._prepared
        if request is not None and request.waiting is waiting:
            self._prepared = None
            if not self._fits(request):
                request = None
        else:
            request = None
        if request is None:
            leases = self._template if self._attempts == 0 else self._other_leases()
            request = self._new_try(leases, tried, waiting)
        self._request = request
        request.caller_until = self._end_of_try
        request.patient = self._blocking
        if self._blocking:
            request.on_found = self._warn_of_other_type
        self._attempts += 1
        request.begin()

    def prepare(self, tried: Callable[[], object]) -> None:
        """Make the next try, with its token, while there is time: so a wake-up is followed sooner. Nothing is sent.

        The next call of ``try_once`` that is not ``waiting`` (where waiters are registered: the next one) sends it; its
        ``tried`` must mean the same as here.
        """
        if self._prepared is None:
            # Never the leases of the first try, which may be sent before this one.
            self._prepared = self._new_try(self._other_leases(), tried, self.lock_type.registers_waiters)

    def _fits(self, prepared: Acquire) -> bool:
        """Return whether a prepared try is still for the node on which its name lives."""
        group = group_of(prepared.lease)
        return self.table.router.group_of(group, self.key) is group

    def _new_try(self, leases: Sequence[Lease], tried: Callable[[], object], waiting: bool) -> Acquire:
        future: Future[bool] = Future(partial(guarded, self, tried))
        waiter_ttl_ms = self._waiter_ttl_ms if waiting else 0
        return PlainAcquire(self.table, leases, self.options, future, waiter_ttl_ms=waiter_ttl_ms)

    def _other_leases(self) -> Sequence[Lease]:
        return [self._another(lease) for lease in self._template]

    def _another(self, first: Lease) -> Lease:
        wire = first.lease_args
        if not self._token_given:
            wire = lease_args(first.key, self.lock_type.next_token(first.token))
        group = self.table.router.group_of(group_of(first), first.key)
        return Lease(first.name, wire, group, first.owner, first.on_lost, first.call_site)

    @property
    def request(self) -> Acquire:
        """The latest try."""
        assert self._request is not None
        return self._request

    def _answered(self) -> None:
        """Take the answer to the first try; its followers share it."""
        followers, request = self.take_followers(), self.request
        future = request.future
        self._tried()
        if followers:
            error = None if request.cut_short else future.error
            if error is None and not request.cut_short and future.result():
                self._queues.open(followers[0]).granted_to(request.lease)
            # Those with a limit wait for a server that was never there, as ``outlasts_refusal`` says of their own tries.
            hasty = request.caller_until is None and self.node.server is None and is_refused(error)
            for waiter in followers:
                if error is None or (hasty and waiter.until is not None):
                    waiter._begin_again(answered=error is None and not request.cut_short)
                else:
                    waiter.fail(copied(error))

    def take_followers(self) -> Sequence[Waiter]:
        """End the first try of the name, as far as other waiters see it, and return the followers."""
        in_flight = self._queues.in_flight
        if in_flight.get(self.queue_key) is self:
            del in_flight[self.queue_key]
        followers, self._followers = self._followers, None
        return () if followers is None else followers.take_all()

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
        else:
            self.refused_by(request)
            if self._polls:
                self._poll()
            elif self._time_is_up:
                self.refuse()  # its try waited for a connection
            else:
                self._join_queue()

    def _warn_of_other_type(self, found: str) -> None:
        """Log, once a wait, that the lock's key holds a value of another type, which expires."""
        if not self._warned:
            self._warned = True
            message = "waiting for the lock %s: its key holds a %s, where this kind of lock keeps a %s"
            fields = log_fields(
                "foreign_key",
                names=[self.name],
                reason=f"the key holds a {found}",
                node=self.node.connector.describe(),
                context=self.table.state.label,
            )
            log = partial(logger.warning, extra=fields)
            NOTIFIER.post(log, message, quoted(self.name), found, self.lock_type.key_type)

    def refused_by(self, request: Acquire) -> bool:
        """Take a refusal; return True if the waiter waits for another name from now on."""
        return False

    def _join_queue(self) -> None:
        if self._admitted():
            if self.until is not None:
                self.wait_until(self.until)
            self._queues.open(self).join(self)

    def _admitted(self) -> bool:
        """Return True if it may wait; fail it otherwise."""
        error = self._queues.admit(self.name)
        if error is not None:
            self.fail(error)
            return False
        # Readers and permits are not asked about: an owner's reads are one hold, and it may have several permits.
        if (
            self.until is None
            and self.options.max_attempts is None
            and self.lock_type.contention is not Contention.SHARED
        ):
            self._refuse_endless()
        return True

    def _refuse_endless(self) -> None:
        """Fail the wait, which has no limit, if its caller waits for its own release."""
        self.table.refuse_endless(
            self._template[0].owner, [lease.key for lease in self._template], self._refused_endless
        )

    def _refused_endless(self, error: LockAlreadyHeld) -> None:
        if not self.over:
            if self.queue is not None:
                self.queue.remove(self)
            self.fail(error)

    def _poll(self) -> None:
        now, pause_s = self.table.timer.clock.now(), self.options.retry_every_s
        assert pause_s is not None
        if self._was_last(now):
            self.refuse()
        else:
            self._pause(now, pause_s)

    def _was_last(self, now: float) -> bool:
        """Return True if a refused try of one that polls was its last one."""
        return self._attempts == self.options.max_attempts or (self.until is not None and now >= self.until)

    def _pause(self, now: float, pause_s: float) -> None:
        """Have the next try after ``pause_s`` seconds, if it may wait."""
        if self not in self._queues.pollers:
            if not self._admitted():
                return
            self._queues.pollers.add(self)
        # The last pause is shorter, so that the last try comes when the time is up.
        self.wait_until(now + pause_s if self.until is None else min(now + pause_s, self.until))

    def wait_until(self, when: float) -> None:
        """Schedule the waiter for ``when``, in seconds of the timer's clock."""
        self.table.timer.wheel.schedule(self, self.table.timer.scale.ceil(when))

    def on_timeout(self, now: float) -> None:
        """End the wait, or, if it polls, try again."""
        if self in self.table.timer.wheel:
            return  # it has begun anew meanwhile: the waiter that it followed was late in the same step
        if self.queue is not None:
            self.queue.on_waiter_timeout(self)
        elif not self.over and self.future.abandoned:
            self.refuse()
        elif not self.over and self._request is None:
            self.fail_unanswered()  # it is a follower
        elif not self.over and self._polls:  # else it has begun a try in the same step, which ends by itself
            # The second try is the call of a script, whose reply names the type of a foreign key.
            self.try_once(self._tried, waiting=self.lock_type.registers_waiters or self._attempts == 1)

    def crashed(self, error: Exception) -> None:
        self._queues.crashed(error)
        self.fail(internal_error(error, self.name))  # it may not have been in a queue

    def _end(self) -> None:
        self.over = True
        self.queue = self._prepared = None
        if self.tick >= 0:
            self.table.timer.wheel.cancel(self)
            self._queues.pollers.discard(self)

    def succeed(self, leases: Sequence[Lease]) -> None:
        """Complete the wait with granted leases."""
        self._end()
        self._request = None  # it refers to this waiter, and the cycle would be left to the garbage collector
        self.leases = leases
        self.table.state.counters.acquire.add(max(self.table.granted_at - self.began_at, 0.0))
        self.future.set_result(leases)

    def refuse(self) -> None:
        """Complete the wait without a grant."""
        self._end()
        self._clean_up_registration()
        self._request = None
        self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Complete the wait with an error, possibly of another waiter's try while its own is in flight."""
        self._end()
        self.abort()
        self.future.set_exception(error)

    def fail_unanswered(self) -> None:
        """Fail a waiter whose time is up before there was an answer to the try that it shares."""
        waited_s = self.table.timer.now - self.began_at
        self.fail(no_answer(self.node, self._template[0].name, waited_s))

    @property
    def node(self) -> Node:
        """The node of its latest try, or of its first one to come."""
        return acquiring_node_of(self._template[0]) if self._request is None else self._request.node

    def _clean_up_registration(self) -> None:
        """Remove its registration at the server. (A try in flight cleans up by itself.)"""
        request = self._request
        if request is None or not (request.finished and self._blocking and self.lock_type.registers_waiters):
            return
        if request.maybe_executed or self._attempts > 1:  # else nothing was sent
            self.table.clean_up(request.leases)

    def give_up(self) -> None:
        """End the wait of a caller that does not wait any more: undo what was granted, or may have been."""
        if self.over:
            release_unwanted(self.table, self.leases or ())
            return
        queue = self.queue
        self._end()
        if queue is not None:
            queue.remove(self)
        self.abort()
        if self._queues.in_flight.get(self.queue_key) is self:
            for waiter in self.take_followers():
                waiter._begin_again(answered=False)

    def abort(self) -> None:
        """End the try in flight, if there is one, and undo what it may have been granted."""
        request = self._request
        if request is not None:
            self._clean_up_registration()
            request.future = Future(noop)
            in_flight = not request.finished
            request.abandon()
            if in_flight and not request.maybe_executed:
                self._clean_up_registration()  # of earlier tries: this one was never sent, and so undoes nothing
            self._request = None
