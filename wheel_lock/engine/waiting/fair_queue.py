"""The queue of a fair lock, as far as it stands in this process.

The server keeps the order, so each waiter asks for itself: once to take its place, then every so often to keep it, for
who is not heard of any more is skipped. A wake-up calls one of them by name.
"""

from __future__ import annotations

from functools import partial

from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.wait_queue import BaseWaitQueue
from wheel_lock.engine.waiting.waiter import Registry, Waiter
from wheel_lock.protocol.tokens import TOKEN_CHARACTERS
from wheel_lock.wheel import WheelEntry


class QueueSlot(WheelEntry):
    """Where one waiter stands. On the wheel it waits for the waiter's next look."""

    __slots__ = ("_queue", "again", "called", "group", "pace", "paused", "trying", "waiter")

    def __init__(self, queue: FairWaitQueue, waiter: Waiter) -> None:
        self.tick = -1
        self.group = REQUEST_TIMEOUTS
        self._queue = queue
        self.waiter = waiter
        self.trying = False
        self.again = False  # try once more when the current try is over
        self.called = False  # woken while a try was under way, which may have been refused just before
        self.pace = Pace(queue.timer.scale.tick_s)
        self.paused = False  # woken in vain before: the next try waits for its tick

    def on_timeout(self, now: float) -> None:
        """It is time to be heard of again."""
        self._queue.look(self)

    @property
    def above(self) -> EngineState:
        """The engine."""
        return self._queue.above

    def crashed(self, error: Exception) -> None:
        """End all waits: the library's own code has failed in the middle of one."""
        self._queue.crashed(error)


class FairWaitQueue(BaseWaitQueue):
    """Those each of whom asks for itself. On the wheel it waits for its end, when nobody stands in it any more."""

    __slots__ = ("_slots",)

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        super().__init__(wait_queues, first)
        self._slots: dict[bytes, QueueSlot] = {}  # by the name under which the server knows the waiter

    def _name(self, waiter: Waiter) -> bytes:
        return waiter.request.lease.token[:TOKEN_CHARACTERS]

    def join(self, waiter: Waiter) -> None:
        """Stand at the end: its first try has taken a place there."""
        super().join(waiter)
        self.timer.wheel.cancel(self)
        self._slots[self._name(waiter)] = slot = QueueSlot(self, waiter)
        if self._subscribed:
            self.look(slot)  # what was published since its own try, nobody has listened to
        else:
            self._look_later(slot, None)

    def left(self, waiter: Waiter) -> None:
        """Its place is free."""
        slot = self._slots.pop(self._name(waiter))
        self.timer.wheel.cancel(slot)

    def drain(self) -> list[Waiter]:
        """Send everybody away, without a word; return who stood in it."""
        for slot in self._slots.values():
            self.timer.wheel.cancel(slot)
        self._slots.clear()
        return super().drain()

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """A waiter's time is up: a last try, because nothing else may have told it that it is its turn."""
        waiter.last = True
        self.look(self._slots[self._name(waiter)])

    def on_subscribed(self, holds: bool) -> None:
        """The subscription begins to hold, or does not: what was published before was not heard, so all look once more."""
        super().on_subscribed(holds)
        if holds:
            for slot in list(self._slots.values()):
                self._call(slot)

    def on_message(self, message: bytes) -> None:
        """A message names the waiter whose turn it is; any user who may publish can have sent it. The server decides."""
        slot = self._slots.get(message)
        if slot is not None:
            self._call(slot)

    def _call(self, slot: QueueSlot) -> None:
        """Have a waiter try: at once, or, if earlier wake-ups were in vain, at the next tick."""
        if slot.trying:
            slot.called = True
        elif not slot.paused:
            timer = self.timer
            if slot.pace.allows(timer.now):
                self.look(slot)
            else:
                slot.paused = True
                timer.wheel.cancel(slot)
                timer.wheel.schedule(slot, timer.scale.ceil(timer.clock.now()))

    def look(self, slot: QueueSlot) -> None:
        """Have a waiter ask."""
        if slot.trying:
            slot.again = True
            return
        self.timer.wheel.cancel(slot)
        slot.trying, slot.again, slot.called, slot.paused = True, False, False, False
        slot.pace.tried(self.timer.now)
        slot.waiter.try_once(partial(self._tried, slot), waiting=True)

    def _tried(self, slot: QueueSlot) -> None:
        slot.trying = False
        waiter = slot.waiter
        if waiter.over or waiter.queue is not self:
            return
        request = waiter.request
        if request.cut_short and request.future.error is not None:
            self._go(waiter).fail(request.future.error)
        elif request.future.error is not None:
            self.fail(request.future.error)
        elif request.future.result():
            self._go(waiter).succeed(request.leases)
        elif waiter.last and not slot.again:
            self._go(waiter).refuse()
        elif slot.again:
            self.look(slot)
        else:
            slot.pace.refused(self.timer.now, request.retry_ms)
            if slot.called:
                self._call(slot)
            else:
                self._look_later(slot, request.retry_ms)

    def _look_later(self, slot: QueueSlot, retry_ms: int | None) -> None:
        pause_s = slot.waiter.waiter_ttl_s / 3
        if retry_ms is not None:
            pause_s = min(pause_s, (retry_ms + 1) / 1000)  # a millisecond more, because the server rounds down
        timer = self.timer
        timer.wheel.schedule(slot, timer.scale.ceil(timer.clock.now() + pause_s))
