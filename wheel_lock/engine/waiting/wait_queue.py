"""Lines: the callers of a process that wait for one name.

Only the first in a queue contends on the server; the others stand behind it in the order of their arrival. It tries
again when it is woken by a release, when the holder's lease would end, and, because wake-ups can be lost, when it has
not heard anything for a while. Its own process's releases need no message at all: the try follows the release on the
same connection. Before there is a queue, those who come while somebody asks for the first time wait for what he hears.

The algorithm is the usual one for a lock with pub/sub (Redisson's): subscribe, try once more, then wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial

from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, least_s
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.waiter import IS_OVER, Registry, Waiter
from wheel_lock.errors import TooManyLocks, copied
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.lock_types.base import Contention
from wheel_lock.net.request_queue import Parking
from wheel_lock.wheel import WheelEntry

_LINGER_S = 2.0  # a subscription outlives its last waiter for so long: the next one may come at once
_IN_A_ROW = 16  # grants that pass from hand to hand within a process before other processes get their chance
_FIRST_LOOK_S = 0.1
_FRESH_S = 0.1  # for so long what the server has said is as good as what it would say


class BaseWaitQueue(WheelEntry):
    """Who of this process waits for one name. On the wheel it waits for its end, when nobody stands in it any more.

    Attributes:
        channel: Where its waiters are woken.
        place: What it is found by.
    """

    __slots__ = ("_key", "_listens", "_registry", "_subscribed", "_waiters", "channel", "group", "queue_key", "timer")

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        self.tick = -1
        self.group = REQUEST_TIMEOUTS
        self._registry = wait_queues
        self.timer = wait_queues.table.timer
        self._key = first.key
        self.channel = first.lock_type.wake_channel(first.key)
        self.queue_key = first.queue_key
        # Ordered, because taking the first of many out of a plain dict again and again is quadratic.
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._listens = False
        self._subscribed = False

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters)

    @property
    def held_here(self) -> bool:
        """Whether the lock is known to be held by this process, and nobody else can be let in meanwhile."""
        return False

    # -- who stands in it --------------------------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Stand at the end."""
        waiter.queue = self
        self._waiters[waiter] = None
        self._registry.waiting += 1
        if not self._listens:
            self._listens = True
            self._registry.pubsub.listen(self.channel, self)

    def leave(self, waiter: Waiter) -> None:
        """Stand there no more. The caller ends a try that is under way."""
        if self._waiters.pop(waiter, self) is self:
            return
        self._registry.waiting -= 1
        self.left(waiter)
        if not self._waiters:
            self.close_later()

    def left(self, waiter: Waiter) -> None:
        """Somebody stands there no more."""

    def close_later(self) -> None:
        """Nobody stands in it: close it, unless somebody comes soon."""
        self._schedule(_LINGER_S)

    def drain(self) -> list[Waiter]:
        """Send everybody away, without a word; return who stood in it."""
        waiters = list(self._waiters)
        self._waiters.clear()
        self.timer.wheel.cancel(self)
        return waiters

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """A waiter's time is up."""
        raise NotImplementedError

    def _go(self, waiter: Waiter) -> Waiter:
        self.leave(waiter)
        return waiter

    def fail(self, error: Exception) -> None:
        """Whatever kept one from asking the server keeps all of them."""
        waiters = list(self._waiters)
        for waiter in waiters:
            self._go(waiter).fail(copied(error))

    # -- what may wake them ------------------------------------------------------------------------------------------

    def on_subscribed(self, holds: bool) -> None:
        """The subscription begins to hold, or does not."""
        self._subscribed = holds

    def on_message(self, message: bytes) -> None:
        """Somebody has released the lock."""
        raise NotImplementedError

    def ended(self, lease: Lease) -> None:
        """A lease of this process has ended; if it was released, the release has just been sent."""

    def granted_to(self, lease: Lease) -> None:
        """The lock was granted to this process."""

    def listened(self, woken: int) -> None:
        """A release has woken so many listeners, on all servers' connections together."""

    @property
    def above(self) -> EngineState:
        """The engine."""
        return self._registry.table.state

    def crashed(self, error: Exception) -> None:
        """End all waits: the library's own code has failed in the middle of one."""
        self._registry.crashed(error)

    def on_timeout(self, now: float) -> None:
        """The wheel says that the time has come."""
        if self not in self.timer.wheel and not self._waiters:  # else scheduled anew in the same step
            self._registry.close(self.queue_key, self, self.channel)

    def _schedule(self, pause_s: float) -> None:
        timer = self.timer
        timer.wheel.cancel(self)
        timer.wheel.schedule(self, timer.scale.ceil(timer.clock.now() + pause_s))


class WaitQueue(BaseWaitQueue):
    """Those of whom only the first asks. On the wheel it waits for its next look."""

    __slots__ = (
        "_again",
        "_called",
        "_heard_at",
        "_in_a_row",
        "_leaving",
        "_pace",
        "_paused",
        "_rivals",
        "_shared",
        "_trying",
        "_yielding",
        "holder",
    )

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        super().__init__(wait_queues, first)
        self._shared = first.lock_type.contention is Contention.SHARED
        self.holder: Lease | None = None  # where the lock is held by this process, and was granted to this queue
        self._trying: Acquire | None = None
        self._again = False  # released here while a try was under way, which may have been refused just before
        self._called = False  # woken meanwhile
        self._pace = Pace(self.timer.scale.tick_s)
        self._paused = False  # woken in vain before: the next try waits for its tick
        self._yielding = False
        self._rivals = 0  # other processes that listened at the last release
        self._in_a_row = 0
        self._heard_at = self.timer.now  # when the server has answered last: what it said is why there is a queue
        # Those behind the first whose time is up, and who want to be sure.
        self._leaving: Parking[Waiter] = Parking(IS_OVER)

    @property
    def _first(self) -> Waiter:
        return next(iter(self._waiters))

    @property
    def held_here(self) -> bool:
        """Whether the lock is held by this process, and was granted to this queue."""
        holder = self.holder
        # One that is not renewed says nothing when somebody else takes its key away.
        return holder is not None and holder.state <= EXTENDING and not holder.at_limit

    # -- who stands in it --------------------------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Stand at the end."""
        super().join(waiter)
        if len(self._waiters) > 1:
            return
        if self._subscribed and not self.held_here:
            self._try()  # what was published since its own try, nobody has listened to
        else:
            self._look_later()

    def left(self, waiter: Waiter) -> None:
        """Somebody stands there no more: who is first now tries, if he was being asked for."""
        trying = self._trying
        if trying is not None and trying is waiter._request:
            self._trying = None
            # After the clean-up of the try that is given up, which follows in this very turn.
            self.timer.post(self._try, self)

    def close_later(self) -> None:
        """Nobody stands in it: close it, unless somebody comes soon."""
        self._yielding = self._paused = False
        super().close_later()

    def drain(self) -> list[Waiter]:
        """Send everybody away, without a word; return who stood in it."""
        self._trying = None
        self._leaving.clear()
        return super().drain()

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """A waiter's time is up: the first gets a last try, because nothing else may have told it that it is free.

        One behind it goes, if it is sure that the lock is taken: that was heard just now, or is from a last look.
        """
        if waiter is not self._first:
            self._leave_behind(waiter)
            return
        waiter.last = True
        if self._trying is None:
            if self.held_here:
                self._go(waiter).refuse()
            else:
                self._try()

    def _leave_behind(self, waiter: Waiter) -> None:
        now = self.timer.now
        if self.held_here or now - self._heard_at <= _FRESH_S:
            self._go(waiter).refuse()
        elif waiter.last:
            self._go(waiter).fail_unanswered()
        else:
            waiter.last = True
            waiter.wait_until(now + least_s(self._first.node))
            self._leaving.append(waiter)
            if not self._yielding:
                self._try()

    # -- what wakes the first ----------------------------------------------------------------------------------------

    def on_subscribed(self, holds: bool) -> None:
        """The subscription begins to hold, or does not: what was published before was not heard, so look once more."""
        super().on_subscribed(holds)
        if holds:
            self.on_message(b"")

    def on_message(self, message: bytes) -> None:
        """A message says that the lock is free; any user who may publish can have sent it."""
        if not self._waiters or self._yielding or self._paused or self.held_here:
            return
        if self._trying is not None:
            self._called = True
        else:
            self._heed()

    def _heed(self) -> None:
        """Follow a wake-up: at once, or, if earlier ones were in vain, at the next tick."""
        if self._pace.allows(self.timer.now):
            self._try()
        else:
            self._paused = True
            self._schedule(
                0.0
            )  # no later: another process's queue may leave the lock free for one tick only, see ended()

    def granted_to(self, lease: Lease) -> None:
        """The lock was granted to this process."""
        if not self._shared:
            self.holder = lease

    def ended(self, lease: Lease) -> None:
        """A lease of this process on this name has ended; a release of it has just been sent."""
        if self.held_here and self.holder is not lease:
            return
        self.holder = None
        if not self._waiters or self._yielding:
            return
        self._in_a_row += 1
        if self._trying is not None:
            self._again = True
        elif self._rivals > 0 and self._in_a_row >= _IN_A_ROW:
            self._in_a_row = 0
            self._yielding = True
            self._schedule(self.timer.scale.tick_s)
        else:
            self._try()

    def on_timeout(self, now: float) -> None:
        """Nothing was heard for a while: look."""
        if self in self.timer.wheel:
            return  # scheduled anew by something else that came due in the same step
        self._yielding = self._paused = False
        if not self._waiters:
            self._registry.close(self.queue_key, self, self.channel)
        elif self._trying is None:
            # Who has said how often he wants to look does so also here: the key may have been released behind our back.
            if self.held_here and self._first.options.fallback_s is None:
                self._look_later()
            else:
                self._try()

    def listened(self, woken: int) -> None:
        """A release has woken so many listeners, on all servers' connections together."""
        # In a cluster the number says nothing: it counts the subscribers of one node only.
        self._rivals = woken - self._subscribed if self._registry.table.router.stable else 1

    # -- trying ------------------------------------------------------------------------------------------------------

    def _try(self) -> None:
        if self._trying is not None or not self._waiters:
            return
        self._again = self._called = self._yielding = self._paused = False
        self._pace.tried(self.timer.now)
        self.timer.wheel.cancel(self)
        first = self._first
        first.try_once(partial(self._tried, first), waiting=True)
        if first.queue is self and not first.request.future.done:
            self._trying = first.request

    def _tried(self, waiter: Waiter) -> None:
        if waiter.over:
            return  # and somebody else's try may be under way
        request = waiter.request
        self._trying = None
        error = request.future.error
        if error is None:
            self._heard_at = self.timer.now
            for other in self._leaving.take_all():
                if other.queue is self and other is not waiter:
                    self._go(other).refuse()
        if error is not None and waiter.concerns_others and not (request.cut_short or isinstance(error, TooManyLocks)):
            self.fail(error)
        elif error is not None:
            self._go(waiter).fail(error)
            self.timer.post(self._try, self)  # there may be very many, and each of them may fail at once
        elif request.future.result():
            self._granted(waiter, request)
        else:
            self._refused(waiter, request)

    def _granted(self, waiter: Waiter, request: Acquire) -> None:
        self._pace.granted()
        for lease in request.leases:
            if lease.key == self._key:
                self.granted_to(lease)
        self._go(waiter).succeed(request.leases)
        if self._waiters:
            if self._shared:
                self._try()  # there may be room for more
            else:
                self._look_later()

    def _refused(self, waiter: Waiter, request: Acquire) -> None:
        self._pace.refused(self.timer.now, request.retry_ms)
        if not self.held_here:
            self.holder = None
            self._in_a_row = 0
        if waiter.last:
            self._go(waiter).refuse()
        elif waiter.refused_by(request):
            self._registry.open(self._go(waiter)).join(waiter)  # it is another name that keeps it waiting
            self._try()
            return
        if self._again:
            self._try()
        elif self._called and self._waiters:
            self._heed()
        elif self._waiters:
            self._look_later(request.retry_ms)

    def _look_later(self, retry_ms: int | None = None) -> None:
        """Look when the holder's lease would end, but not too late: its release may go unheard, or be published by nobody.

        The longer it has been waited for, the less a moment more matters: so the looks come further and further apart.
        """
        first = self._first
        pause_s = first.options.fallback_s
        if pause_s is None:
            waited_s = self.timer.now - first.began_at
            most_s = (
                first.waiter_ttl_s / 3
                if first.lock_type.registers_waiters
                else self._registry.table.state.options.fallback_s
            )
            pause_s = min(max(_FIRST_LOOK_S, waited_s), most_s)
        if retry_ms is not None:
            pause_s = min(pause_s, (retry_ms + 1) / 1000)  # a millisecond more, because the server rounds down
        self._schedule(pause_s)
