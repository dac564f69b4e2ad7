"""Wait queues: the waiters of one process for one name.

Only the head of a queue contends on the server; the others follow in the order of their arrival. The head tries again when
a release wakes it, when the holder's lease would end, and, because wake-ups can be lost, after a while without one. A
release of its own process needs no message: the try follows it on the same connection. As long as there is no queue, the
waiters that come during the first try share its answer.

The algorithm is the usual one for a lock with pub/sub (Redisson's): subscribe, try once more, then wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial

from wheel_lock.engine.interfaces import node_of
from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, RequestTimeouts
from wheel_lock.engine.requests.release import announce
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.decisions import (
    DECISIONS,
    DUE,
    EMPTY,
    FOLLOW,
    HELD_HERE,
    IN_FLIGHT,
    JOINED,
    JOINED_UNHEARD,
    LOOK,
    LOOK_LATER,
    MESSAGE,
    NOTHING,
    PAUSED,
    PREPARE,
    REFUSE,
    REFUSED,
    RELEASED,
    SUBSCRIBED,
    TIME_UP,
    TIME_UP_BEHIND,
    TRY,
    TRY_AT_PACE,
    TRY_PLAIN_AT_PACE,
    TRYING,
    WAITING,
    YIELDING,
    QueueAction,
    QueueEvent,
    QueueState,
)
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


class Contender(WheelEntry):
    """A contender for the lock of one queue: its head, or each of its waiters. On the wheel it waits for its next look.

    Attributes:
        queue: Its queue.
        waiter: The waiter whose try is in flight, or was the latest; None before the first.
        state: Its state, as far as the queue does not know better: see :meth:`BaseWaitQueue.state_of`.
        pace: The pace at which it follows wake-ups.
    """

    __slots__ = ("group", "pace", "queue", "state", "waiter")

    def __init__(self, queue: BaseWaitQueue, waiter: Waiter | None = None) -> None:
        self.tick = -1
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self.queue: BaseWaitQueue = queue
        self.waiter: Waiter | None = waiter
        self.state: QueueState = WAITING
        self.pace: Pace = Pace(queue.timer.scale.tick_s)

    def on_timeout(self, now: float) -> None:
        """Look: there was no wake-up for a while."""
        if self not in self.queue.timer.wheel:  # else it was scheduled anew by another entry of the same step
            self.queue.handle(self, DUE)

    @property
    def above(self) -> EngineState:
        return self.queue.above

    def crashed(self, error: Exception) -> None:
        self.queue.crashed(error)


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

    # -- what may wake them ------------------------------------------------------------------------------------------

    def on_subscribed(self, holds: bool) -> None:
        self._subscribed = holds

    def on_message(self, message: bytes) -> None:
        raise NotImplementedError

    def follows(self, lease: Lease) -> bool:
        """Return whether :meth:`ended` sends an acquire behind the release of ``lease``, in the same write."""
        return False

    def owe_wakeup(self) -> None:
        """Note that a release wakes no other waiters, because an acquire follows it. If none does, they are woken."""

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

    # -- what its contenders do --------------------------------------------------------------------------------------

    def state_of(self, contender: Contender) -> QueueState:
        """Return the state in which ``contender`` is."""
        return contender.state

    def waiter_of(self, contender: Contender) -> Waiter | None:
        """Return the waiter that is to try for ``contender``; None if there is none."""
        return contender.waiter

    def handle(self, contender: Contender, event: QueueEvent) -> None:
        """Do what the table of decisions says about an event."""
        action, state = DECISIONS[self.state_of(contender)][event]
        if state is not None:
            contender.state = state
        if action is not NOTHING:
            self._act(action, contender, None)

    def _act(self, action: QueueAction, contender: Contender, refused: Acquire | None) -> None:
        """Do an action; ``refused`` is the try whose refusal causes it, if one does: its waiter may have gone."""
        if action is TRY:
            self._try(contender)
        elif action is TRY_AT_PACE or action is TRY_PLAIN_AT_PACE:
            if contender.pace.allows(self.timer.now):
                self._try(contender, plain=action is TRY_PLAIN_AT_PACE and not contender.pace.doubtful)
            else:
                contender.state = PAUSED
                self._schedule(contender, 0.0)  # no later: another process may leave the lock free for one tick only
        elif action is LOOK_LATER:
            self._look_later(contender, None)
        elif action is PREPARE:
            self._prepare(contender, refused)
        else:
            raise AssertionError(f"{action!r} is for another kind of queue")

    def _try(self, contender: Contender, *, plain: bool = False) -> None:
        """Have the waiter of a contender try, unless it does; ``plain`` if the lock has probably been released.

        Such a try is a plain SET where the lock type has one: cheaper, but its refusal does not say how long to wait.
        """
        if contender.state in IN_FLIGHT:
            return
        while (waiter := self.waiter_of(contender)) is not None and waiter.future.abandoned:
            self.remove(waiter).refuse()
        if waiter is None:
            self._wake_others()
            return
        contender.state, contender.waiter = TRYING, waiter
        contender.pace.tried(self.timer.now)
        tried = partial(self._tried, contender, waiter)
        waiter.try_once(tried, waiting=not plain or waiter.lock_type.registers_waiters)

    def _tried(self, contender: Contender, waiter: Waiter) -> None:
        if waiter.queue is not self:
            return  # it is over, and the try of another waiter may be in flight
        state, contender.state = contender.state, WAITING
        request = waiter.request
        error = request.future.error
        if error is None:
            self._answered(waiter)
            if request.future.result():
                self._granted(contender, waiter, request)
            else:
                contender.pace.refused(self.timer.now, request.retry_ms)
                self._refused(contender, waiter, request, state)
                if self.waiter_of(contender) is not None and contender.state is WAITING:
                    self._act(DECISIONS[state][REFUSED].action, contender, request)
        elif waiter.concerns_others and not (request.cut_short or isinstance(error, TooManyLocks)):
            # What keeps one of them from asking the server keeps all.
            for other in list(self._waiters):
                self.remove(other).fail(copied(error))
            self._wake_others()
        else:
            self.remove(waiter).fail(error)
            self.timer.post(partial(self._try, contender), self)  # there may be very many, and each may fail at once

    def _answered(self, waiter: Waiter) -> None:
        """Note that the server has answered the try of ``waiter``."""

    def _granted(self, contender: Contender, waiter: Waiter, request: Acquire) -> None:
        self.remove(waiter).succeed(request.leases)

    def _refused(self, contender: Contender, waiter: Waiter, request: Acquire, state: QueueState) -> None:
        if waiter.last:
            self.remove(waiter).refuse()

    def _wake_others(self) -> None:
        """Wake the waiters of other processes if that is owed to them."""

    def _prepare(self, contender: Contender, refused: Acquire | None) -> None:
        waiter = self.waiter_of(contender)
        assert waiter is not None
        assert refused is not None
        if refused.retry_ms is None and not refused.waiting:
            # A look would find out for how long, but the next wake-up may come sooner.
            self._schedule(contender, min(waiter.options.fallback_s or _FIRST_LOOK_S, _FIRST_LOOK_S))
        else:
            self._look_later(contender, refused.retry_ms)
        waiter.prepare(partial(self._tried, contender, waiter))

    def _look_later(self, contender: Contender, retry_ms: int | None) -> None:
        """Schedule a look for when the holder's lease would end, or earlier: its release may go unheard."""
        raise NotImplementedError

    def _schedule(self, entry: WheelEntry, pause_s: float, retry_ms: int | None = None) -> None:
        """Schedule this queue, or a contender, anew: in ``pause_s`` seconds, or when the holder's lease would end."""
        if retry_ms is not None:
            pause_s = min(pause_s, (retry_ms + 1) / 1000)  # a millisecond more, because the server rounds down
        timer = self.timer
        timer.wheel.cancel(entry)
        timer.wheel.schedule(entry, timer.scale.ceil(timer.clock.now() + pause_s))


class WaitQueue(BaseWaitQueue):
    """A queue of which only the head tries."""

    __slots__ = (
        "_contender",
        "_heard_at",
        "_in_a_row",
        "_leaving",
        "_owing",
        "_rivals",
        "_shared",
        "holder",
    )

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        super().__init__(wait_queues, first)
        self._shared = first.lock_type.contention is Contention.SHARED
        self._contender = Contender(self)
        self.holder: Lease | None = None  # the lease of this process that was granted to this queue
        self._owing = False  # the last release woke no waiters, because a try was to follow it
        self._rivals = 0  # other processes that listened at the last release that woke waiters
        self._in_a_row = 0
        self._heard_at = self.timer.now  # of the server's last answer; the first is the reason for this queue
        # Waiters behind the head whose time is up, and which wait for one more answer.
        self._leaving: Parking[Waiter] = Parking(IS_OVER)

    @property
    def held_here(self) -> bool:
        holder = self.holder
        # A lease that is not renewed does not notice when its key goes to another process.
        return holder is not None and holder.state <= EXTENDING and not holder.at_limit

    def state_of(self, contender: Contender) -> QueueState:
        if not self._waiters:
            return EMPTY
        state = contender.state
        is_free = state is WAITING or state is PAUSED
        return HELD_HERE if is_free and self.holder is not None and self.held_here else state

    def waiter_of(self, contender: Contender) -> Waiter | None:
        return next(iter(self._waiters), None)

    # -- its waiters -------------------------------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        super().join(waiter)
        if len(self._waiters) == 1:
            self.handle(self._contender, JOINED_UNHEARD if self._subscribed else JOINED)

    def _removed(self, waiter: Waiter) -> None:
        """Have the new head try if the removed one was trying."""
        contender = self._contender
        if contender.state in IN_FLIGHT and contender.waiter is waiter:
            contender.state = WAITING
            # After the clean-up of the abandoned try, which follows in this very turn.
            self.timer.post(partial(self._try, contender), self)

    def close_later(self) -> None:
        self._contender.state = WAITING
        self.timer.wheel.cancel(self._contender)
        super().close_later()

    def drain(self) -> list[Waiter]:
        self._wake_others()
        self._contender.state = WAITING
        self.timer.wheel.cancel(self._contender)
        self._leaving.clear()
        return super().drain()

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """Give the head a last try, because a release may have gone unheard; dismiss any other as soon as the lock is
        certain to be held: by a recent answer, or by one last try."""
        if waiter is self.waiter_of(self._contender):
            waiter.begin_last()
            if self._contender.state not in IN_FLIGHT:  # else that try is its last
                self.handle(self._contender, TIME_UP)
        elif self.held_here or self.timer.now - self._heard_at <= _FRESH_S:
            self.remove(waiter).refuse()
        elif waiter.last:
            self.remove(waiter).fail_unanswered()
        else:
            waiter.begin_last()
            assert waiter.until is not None
            waiter.wait_until(waiter.until)
            self._leaving.append(waiter)
            self.handle(self._contender, TIME_UP_BEHIND)

    # -- what may wake its head --------------------------------------------------------------------------------------

    def on_subscribed(self, holds: bool) -> None:
        super().on_subscribed(holds)
        if holds:
            self.handle(self._contender, SUBSCRIBED)

    def on_message(self, message: bytes) -> None:
        self.handle(self._contender, MESSAGE)

    def granted_to(self, lease: Lease) -> None:
        if not self._shared:
            self.holder = lease

    def follows(self, lease: Lease) -> bool:
        """Return whether a try follows the release of ``lease``, so that this need not wake others.

        The first release of a row wakes them, because that counts the rivals, and so does the last one, for their sake.
        """
        if (
            self._shared
            or not self._waiters
            or self._in_a_row == 0
            or self._contender.state > PAUSED
            or (self._rivals > 0 and self._in_a_row >= _IN_A_ROW - 1)
            or (self.holder is not lease and self.held_here)
        ):
            return False
        head, node = next(iter(self._waiters)), node_of(lease)
        # A waiter for several names may be refused because of another one. On another connection, or without room on this
        # one, the acquire would not be behind the release.
        return head.concerns_others and head.node is node and node.connected and not (node.clogged or node.crowded)

    def owe_wakeup(self) -> None:
        self._owing = True

    def ended(self, lease: Lease) -> None:
        """Have the head try, or, after many grants in a row within this process, let other processes try for one tick."""
        if self.held_here and self.holder is not lease:
            return
        self.holder = None
        if self._contender.state is not YIELDING and self._waiters:
            self._in_a_row += 1
        self.handle(self._contender, RELEASED)

    def _act(self, action: QueueAction, contender: Contender, refused: Acquire | None) -> None:
        if action is FOLLOW:
            if self._in_a_row >= _IN_A_ROW:
                self._in_a_row = 0
                if self._rivals > 0:
                    contender.state = YIELDING
                    self._schedule(contender, self.timer.scale.tick_s)
                    return
            self._try(contender, plain=True)
        elif action is LOOK:
            # With an interval of its caller's the head tries also here: the key may have been deleted by others.
            if next(iter(self._waiters)).options.fallback_s is None:
                self._look_later(contender, None)
            else:
                self._try(contender)
        elif action is REFUSE:
            self.remove(next(iter(self._waiters))).refuse()
        else:
            super()._act(action, contender, refused)

    def _wake_others(self) -> None:
        """Wake the waiters of other processes now if the last release did not, and no try has followed it."""
        if self._owing:
            self._owing = False
            announce(self._registry.table, self._key, self.channel)

    def listened(self, woken: int) -> None:
        self._rivals = self._registry.table.router.rivals(woken, self._subscribed)

    # -- the answers -------------------------------------------------------------------------------------------------

    def _answered(self, waiter: Waiter) -> None:
        self._heard_at = self.timer.now
        self._owing = False  # granted here, or held by another, whose release wakes others
        if len(self._leaving):
            for other in self._leaving.take_all():
                if other.queue is self and other is not waiter:
                    self.remove(other).refuse()

    def _granted(self, contender: Contender, waiter: Waiter, request: Acquire) -> None:
        contender.pace.granted()
        if not self._shared:
            leases = request.leases
            self.holder = leases[0] if len(leases) == 1 else next(lease for lease in leases if lease.key == self._key)
        del self._waiters[waiter]
        self._registry.waiting -= 1
        waiter.succeed(request.leases)
        if not self._waiters:
            self.close_later()
        elif self._shared:
            self._try(contender)  # there may be room for more
        elif contender.tick <= self.timer.wheel.now or next(iter(self._waiters)).options.fallback_s is not None:
            self._look_later(contender, None)  # else it looks some time, which is enough while it is held here

    def _refused(self, contender: Contender, waiter: Waiter, request: Acquire, state: QueueState) -> None:
        if not self.held_here:
            self.holder = None
            self._in_a_row = 0
        super()._refused(contender, waiter, request, state)
        if not waiter.over and waiter.refused_by(request):
            self._registry.open(self.remove(waiter)).join(waiter)  # it waits for another name now
            self._try(contender)

    def _look_later(self, contender: Contender, retry_ms: int | None) -> None:
        """Schedule a look. The pauses grow with the time that has been waited: so a moment more matters less."""
        head = next(iter(self._waiters))
        pause_s = head.options.fallback_s
        if pause_s is None:
            registers = head.lock_type.registers_waiters
            most_s = head.waiter_ttl_s / 3 if registers else self._registry.table.state.options.fallback_s
            pause_s = min(max(_FIRST_LOOK_S, self.timer.now - head.began_at), most_s)
        self._schedule(contender, pause_s, retry_ms)
