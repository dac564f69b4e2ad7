"""Wait queues: the waiters of one process for one name.

Only the head of a queue contends on the server; the others follow in the order of their arrival. The head tries again when
a release wakes it, when the holder's lease would end, and, because wake-ups can be lost, after a while without one. A
release of its own process needs no message: the try follows it on the same connection. As long as there is no queue, the
waiters that come during the first try share its answer.

The algorithm is the usual one for a lock with pub/sub (Redisson's): subscribe, try once more, then wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, RequestTimeouts, node_of
from wheel_lock.engine.requests.release import announce
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.waiter import IS_OVER, Registry, Waiter
from wheel_lock.errors import TooManyLocks, copied
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.base import Contention
from wheel_lock.net.request_queue import Parking
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.wheel import WheelEntry

_CLOSE_AFTER_S = 2.0  # a subscription outlives its last waiter for so long: the next one may come at once
_IN_A_ROW = 16  # grants in a row within a process, after which other processes get their chance
_FIRST_LOOK_S = 0.1
_FRESH_S = 0.1  # for so long the server's last answer is as good as a new one


class BaseWaitQueue(WheelEntry):
    """The waiters of one name in this process. On the wheel an empty queue waits to be closed.

    Attributes:
        channel: The channel of its wake-ups.
        queue_key: Its key in the registry.
    """

    __slots__ = ("_key", "_listens", "_registry", "_subscribed", "_waiters", "channel", "group", "queue_key", "timer")

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        self.tick = -1
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self._registry = wait_queues
        self.timer: HashedWheelTimer = wait_queues.table.timer
        self._key = first.key
        self.channel: bytes = first.lock_type.wake_channel(first.key)
        self.queue_key: bytes = first.queue_key
        # Ordered, because taking the first of many out of a plain dict again and again is quadratic.
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._listens = False
        self._subscribed = False

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters)

    def longest(self) -> tuple[str | bytes, int, float] | None:
        """Return the lock's name, the number of waiters, and when the first of them began; None without any.

        From any thread.
        """
        while True:
            try:
                first = next(iter(self._waiters), None)
                return None if first is None else (first.name, len(self._waiters), first.began_at)
            except RuntimeError:
                pass  # the queue has changed meanwhile

    @property
    def held_here(self) -> bool:
        """True if a lease of this process is known to keep all others out."""
        return False

    # -- its waiters -------------------------------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Add a waiter at the end."""
        waiter.queue = self
        self._waiters[waiter] = None
        self._registry.waiting += 1
        if not self._listens:
            self._listens = True
            self._registry.pubsub.listen(self.channel, self)

    def remove(self, waiter: Waiter) -> Waiter:
        """Remove a waiter, if it is in the queue, and return it. The caller cancels its try in flight."""
        if self._waiters.pop(waiter, self) is None:
            self._registry.waiting -= 1
            self._removed(waiter)
            if not self._waiters:
                self.close_later()
        return waiter

    def _removed(self, waiter: Waiter) -> None:
        """Called with each waiter that has been removed."""

    def close_later(self) -> None:
        """Close the empty queue, unless a waiter joins soon."""
        self._schedule(self, _CLOSE_AFTER_S)

    def drain(self) -> list[Waiter]:
        """Empty the queue without completing its waiters, and return them."""
        waiters = list(self._waiters)
        self._waiters.clear()
        self.timer.wheel.cancel(self)
        return waiters

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """Called when the time of a waiter is up."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Fail all waiters: what keeps one of them from asking the server keeps all."""
        for waiter in list(self._waiters):
            self.remove(waiter).fail(copied(error))

    # -- what may wake them ------------------------------------------------------------------------------------------

    def on_subscribed(self, holds: bool) -> None:
        self._subscribed = holds

    def on_message(self, message: bytes) -> None:
        raise NotImplementedError

    def follows(self, lease: Lease) -> bool:
        """Return whether :meth:`ended` will send an acquire behind the release of ``lease``, in the same write.

        That release may wake no other waiters then. If the acquire does not come to be sent, :meth:`_wake_others` is owed.
        """
        return False

    def ended(self, lease: Lease) -> None:
        """Called when a lease of this process has ended; if it was released, the release has just been sent."""

    def granted_to(self, lease: Lease) -> None:
        """Note that the lock was granted to this process."""

    def listened(self, woken: int) -> None:
        """Note that a release has woken so many subscribers, on the connections of all processes together."""

    @property
    def above(self) -> EngineState:
        return self._registry.table.state

    def crashed(self, error: Exception) -> None:
        self._registry.crashed(error)

    def on_timeout(self, now: float) -> None:
        """Close the queue if it is empty, and was not scheduled anew in the same step."""
        if self not in self.timer.wheel and not self._waiters:
            self._registry.close(self.queue_key, self, self.channel)

    def _schedule(self, entry: WheelEntry, pause_s: float, retry_ms: int | None = None) -> None:
        """Schedule this queue, or a slot of it, anew: in ``pause_s`` seconds, or when the holder's lease would end."""
        if retry_ms is not None:
            pause_s = min(pause_s, (retry_ms + 1) / 1000)  # a millisecond more, because the server rounds down
        timer = self.timer
        timer.wheel.cancel(entry)
        timer.wheel.schedule(entry, timer.scale.ceil(timer.clock.now() + pause_s))

    def _follow_wakeup(self, entry: WheelEntry, pace: Pace, attempt: Callable[[], object]) -> None:
        """Call ``attempt()``, or, if earlier wake-ups were in vain, have ``entry`` come due at the next tick."""
        if pace.allows(self.timer.now):
            attempt()
        else:
            self._schedule(entry, 0.0)  # no later: another process's queue may leave the lock free for one tick only


class WaitQueue(BaseWaitQueue):
    """A queue of which only the head tries. On the wheel it waits for the head's next fallback try."""

    __slots__ = (
        "_again",
        "_called",
        "_heard_at",
        "_in_a_row",
        "_leaving",
        "_owing",
        "_pace",
        "_rivals",
        "_shared",
        "_trying",
        "_yielding",
        "holder",
    )

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        super().__init__(wait_queues, first)
        self._shared = first.lock_type.contention is Contention.SHARED
        self.holder: Lease | None = None  # the lease of this process that was granted to this queue
        self._trying: Acquire | None = None
        self._again = False  # released here while a try was in flight, which may have been refused just before
        self._called = False  # woken meanwhile
        self._pace = Pace(self.timer.scale.tick_s)
        self._yielding = False
        self._owing = False  # the last release woke no waiters, because a try was to follow it
        self._rivals = 0  # other processes that listened at the last release that woke waiters
        self._in_a_row = 0
        self._heard_at = self.timer.now  # of the server's last answer; the first is the reason for this queue
        # Waiters behind the head whose time is up, and which wait for one more answer.
        self._leaving: Parking[Waiter] = Parking(IS_OVER)

    @property
    def _head(self) -> Waiter:
        return next(iter(self._waiters))

    @property
    def held_here(self) -> bool:
        holder = self.holder
        # A lease that is not renewed does not notice when its key goes to another process.
        return holder is not None and holder.state <= EXTENDING and not holder.at_limit

    # -- its waiters -------------------------------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        super().join(waiter)
        if len(self._waiters) > 1:
            return
        if self._subscribed and not self.held_here:
            self._try()  # a message since the waiter's own try had no listener
        else:
            self._look_later()

    def _removed(self, waiter: Waiter) -> None:
        """Have the new head try if the removed one was trying."""
        trying = self._trying
        if trying is not None and trying is waiter._request:
            self._trying = None
            self.timer.post(self._try, self)  # after the clean-up of the abandoned try, which follows in this very turn

    def close_later(self) -> None:
        self._yielding = self._pace.paused = False
        super().close_later()

    def drain(self) -> list[Waiter]:
        self._wake_others()
        self._trying = None
        self._leaving.clear()
        return super().drain()

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """Give the head a last try, because a release may have gone unheard; dismiss any other as soon as the lock is
        certain to be held: by a recent answer, or by one last try."""
        if waiter is self._head:
            waiter.begin_last()
            if self._trying is None:
                if self.held_here:
                    self.remove(waiter).refuse()
                else:
                    self._try()
            return
        now = self.timer.now
        if self.held_here or now - self._heard_at <= _FRESH_S:
            self.remove(waiter).refuse()
        elif waiter.last:
            self.remove(waiter).fail_unanswered()
        else:
            waiter.begin_last()
            assert waiter.until is not None
            waiter.wait_until(waiter.until)
            self._leaving.append(waiter)
            if not self._yielding:
                self._try()

    # -- what wakes the head -----------------------------------------------------------------------------------------

    def on_subscribed(self, holds: bool) -> None:
        """Try once more when a subscription is confirmed: earlier messages had no listener."""
        super().on_subscribed(holds)
        if holds:
            self._heed(self._try)

    def on_message(self, message: bytes) -> None:
        """Have the head try: a message says that the lock is free. Any user who may publish can have sent it."""
        self._heed(self._try_woken)

    def _heed(self, attempt: Callable[[], object]) -> None:
        """Make an attempt, unless the lock is known to be held by this process or a try is in flight."""
        if not self._waiters or self._yielding or self._pace.paused or (self.holder is not None and self.held_here):
            return
        if self._trying is not None:
            self._called = True
        else:
            self._follow_wakeup(self, self._pace, attempt)

    def granted_to(self, lease: Lease) -> None:
        if not self._shared:
            self.holder = lease

    def follows(self, lease: Lease) -> bool:
        """Return whether the release of ``lease`` need not wake others; see the base class.

        The first release of a row wakes them, because that counts the rivals, and so does the last one, for their sake.
        """
        if (
            self._shared
            or not self._waiters
            or self._trying is not None
            or self._yielding
            or self._in_a_row == 0
            or (self._rivals > 0 and self._in_a_row >= _IN_A_ROW - 1)
            or (self.holder is not lease and self.held_here)
        ):
            return False
        head, node = self._head, node_of(lease)
        # A waiter for several names may be refused because of another one. On another connection, or without room on this
        # one, the acquire would not be behind the release.
        self._owing = (
            head.concerns_others and head.node is node and node.connected and not (node.clogged or node.crowded)
        )
        return self._owing

    def ended(self, lease: Lease) -> None:
        """Have the head try, or, after many grants in a row within this process, let other processes try for one tick."""
        if self.held_here and self.holder is not lease:
            return
        self.holder = None
        if not self._waiters or self._yielding:
            return
        self._in_a_row += 1
        if self._trying is not None:
            self._again = True
            return
        if self._in_a_row >= _IN_A_ROW:
            self._in_a_row = 0
            if self._rivals > 0:
                self._yielding = True
                self._schedule(self, self.timer.scale.tick_s)
                return
        self._try(woken=True)

    def _wake_others(self) -> None:
        """Wake the waiters of other processes now if the last release did not, and no try has followed it."""
        if self._owing:
            self._owing = False
            announce(self._registry.table, self._key, self.channel)

    def on_timeout(self, now: float) -> None:
        """Have the head try: there was no wake-up for a while."""
        if self in self.timer.wheel:
            return  # scheduled anew by another entry of the same step
        self._yielding = self._pace.paused = False
        if not self._waiters:
            super().on_timeout(now)
        elif self._trying is None:
            # With an interval of its caller's the head tries also here: the key may have been deleted by others.
            if self.held_here and self._head.options.fallback_s is None:
                self._look_later()
            else:
                self._try()

    def listened(self, woken: int) -> None:
        # In a cluster the number says nothing: it counts the subscribers of one node only.
        self._rivals = woken - self._subscribed if self._registry.table.router.stable else 1

    # -- trying ------------------------------------------------------------------------------------------------------

    def _try_woken(self) -> None:
        self._try(woken=not self._pace.doubtful)

    def _try(self, *, woken: bool = False) -> None:
        """Have the head try; ``woken`` if the lock has probably been released.

        Such a try is a plain SET where the lock type has one: cheaper, but its refusal does not say how long to wait.
        """
        if self._trying is not None:
            return
        if not self._waiters:
            self._wake_others()
            return
        self._again = self._called = self._yielding = False
        self._pace.tried(self.timer.now)
        head = next(iter(self._waiters))
        head.try_once(partial(self._tried, head), waiting=not woken or head.lock_type.registers_waiters)
        if head.queue is self and not (request := head.request).future.done:
            self._trying = request

    def _tried(self, waiter: Waiter) -> None:
        if waiter.over:
            return  # the try of another waiter may be in flight
        request = waiter.request
        self._trying = None
        error = request.future.error
        if error is None:
            self._heard_at = self.timer.now
            self._owing = False  # granted here, or held by another, whose release wakes others
            if len(self._leaving):
                for other in self._leaving.take_all():
                    if other.queue is self and other is not waiter:
                        self.remove(other).refuse()
        if error is not None and waiter.concerns_others and not (request.cut_short or isinstance(error, TooManyLocks)):
            self.fail(error)
            self._wake_others()
        elif error is not None:
            self.remove(waiter).fail(error)
            self.timer.post(self._try, self)  # there may be very many, and each of them may fail at once
        elif request.future.result():
            self._granted(waiter, request)
        else:
            self._refused(waiter, request)

    def _granted(self, waiter: Waiter, request: Acquire) -> None:
        self._pace.granted()
        if not self._shared:
            leases = request.leases
            self.holder = leases[0] if len(leases) == 1 else next(lease for lease in leases if lease.key == self._key)
        del self._waiters[waiter]
        self._registry.waiting -= 1
        waiter.succeed(request.leases)
        if not self._waiters:
            self.close_later()
        elif self._shared:
            self._try()  # there may be room for more
        elif self.tick <= self.timer.wheel.now or next(iter(self._waiters)).options.fallback_s is not None:
            self._look_later()  # else it looks some time, which is enough while it is held here

    def _refused(self, waiter: Waiter, request: Acquire) -> None:
        self._pace.refused(self.timer.now, request.retry_ms)
        if not self.held_here:
            self.holder = None
            self._in_a_row = 0
        if waiter.last:
            self.remove(waiter).refuse()
        elif waiter.refused_by(request):
            self._registry.open(self.remove(waiter)).join(waiter)  # it waits for another name now
            self._try()
            return
        if self._again:
            self._try()
        elif self._called and self._waiters:
            self._follow_wakeup(self, self._pace, self._try_woken)
        elif self._waiters:
            head = self._head
            if request.retry_ms is None and not request.waiting:
                # A look would find out for how long, but the next wake-up may come sooner.
                self._schedule(self, min(head.options.fallback_s or _FIRST_LOOK_S, _FIRST_LOOK_S))
            else:
                self._look_later(request.retry_ms)
            head.prepare(partial(self._tried, head))

    def _look_later(self, retry_ms: int | None = None) -> None:
        """Schedule a try for when the holder's lease would end, or earlier: its release may go unheard or unpublished.

        The pauses grow with the time that has been waited: the longer that is, the less a moment more matters.
        """
        head = self._head
        pause_s = head.options.fallback_s
        if pause_s is None:
            registers = head.lock_type.registers_waiters
            most_s = head.waiter_ttl_s / 3 if registers else self._registry.table.state.options.fallback_s
            pause_s = min(max(_FIRST_LOOK_S, self.timer.now - head.began_at), most_s)
        self._schedule(self, pause_s, retry_ms)
