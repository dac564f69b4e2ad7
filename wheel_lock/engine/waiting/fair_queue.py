"""The queue of a fair lock, as far as it is in this process.

The server keeps the order, so each waiter asks for itself: once to take its place, then at intervals to keep it, because
the server skips a waiter whose registration has expired. A wake-up names one waiter.
"""

from __future__ import annotations

from functools import partial

from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, RequestTimeouts
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.wait_queue import BaseWaitQueue
from wheel_lock.engine.waiting.waiter import Registry, Waiter
from wheel_lock.runtime.tokens import TOKEN_CHARACTERS
from wheel_lock.wheel import WheelEntry


class QueueSlot(WheelEntry):
    """The place of one waiter. On the wheel it waits for the waiter's next try."""

    __slots__ = ("_queue", "again", "called", "group", "pace", "trying", "waiter")

    def __init__(self, queue: FairWaitQueue, waiter: Waiter) -> None:
        self.tick = -1
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self._queue = queue
        self.waiter: Waiter = waiter
        self.trying: bool = False
        self.again: bool = False  # try once more when the current try is over
        self.called: bool = False  # woken while a try was in flight, which may have been refused just before
        self.pace: Pace = Pace(queue.timer.scale.tick_s)

    def on_timeout(self, now: float) -> None:
        """Try, which also renews the waiter's registration."""
        self._queue.look(self)

    @property
    def above(self) -> EngineState:
        return self._queue.above

    def crashed(self, error: Exception) -> None:
        self._queue.crashed(error)


class FairWaitQueue(BaseWaitQueue):
    """A queue of which each waiter tries for itself."""

    __slots__ = ("_slots",)

    def __init__(self, wait_queues: Registry, first: Waiter) -> None:
        super().__init__(wait_queues, first)
        self._slots: dict[bytes, QueueSlot] = {}  # by the waiter's name at the server

    def _name(self, waiter: Waiter) -> bytes:
        return waiter.request.lease.token[:-TOKEN_CHARACTERS]

    def join(self, waiter: Waiter) -> None:
        """Add a waiter whose first try has taken a place at the server."""
        super().join(waiter)
        self.timer.wheel.cancel(self)
        self._slots[self._name(waiter)] = slot = QueueSlot(self, waiter)
        if self._subscribed:
            self.look(slot)  # a message since its own try had no listener
        else:
            self._schedule(slot, waiter.waiter_ttl_s / 3)

    def _removed(self, waiter: Waiter) -> None:
        self.timer.wheel.cancel(self._slots.pop(self._name(waiter)))

    def drain(self) -> list[Waiter]:
        for slot in self._slots.values():
            self.timer.wheel.cancel(slot)
        self._slots.clear()
        return super().drain()

    def on_waiter_timeout(self, waiter: Waiter) -> None:
        """Give the waiter a last try, because the message that it is first may have been lost."""
        waiter.begin_last()
        self.look(self._slots[self._name(waiter)])

    def on_subscribed(self, holds: bool) -> None:
        """Have each waiter try once more when a subscription is confirmed: earlier messages had no listener."""
        super().on_subscribed(holds)
        if holds:
            for slot in list(self._slots.values()):
                self._call(slot)

    def on_message(self, message: bytes) -> None:
        """Have the waiter try that a message names. Any user who may publish can have sent it: the server decides."""
        slot = self._slots.get(message)
        if slot is not None:
            self._call(slot)

    def _call(self, slot: QueueSlot) -> None:
        if slot.trying:
            slot.called = True
        elif not slot.pace.paused:
            self._follow_wakeup(slot, slot.pace, partial(self.look, slot))

    def look(self, slot: QueueSlot) -> None:
        """Have the waiter of a slot try, or, if a try is in flight, try again after that."""
        if slot.trying:
            slot.again = True
            return
        self.timer.wheel.cancel(slot)
        slot.trying, slot.again, slot.called = True, False, False
        slot.pace.tried(self.timer.now)
        slot.waiter.try_once(partial(self._tried, slot), waiting=True)

    def _tried(self, slot: QueueSlot) -> None:
        slot.trying = False
        waiter = slot.waiter
        if waiter.over or waiter.queue is not self:
            return
        request = waiter.request
        error = request.future.error
        if error is not None and request.cut_short:
            self.remove(waiter).fail(error)
        elif error is not None:
            self.fail(error)
        elif request.future.result():
            self.remove(waiter).succeed(request.leases)
        elif slot.again:
            self.look(slot)
        elif waiter.last:
            self.remove(waiter).refuse()
        else:
            slot.pace.refused(self.timer.now, request.retry_ms)
            if slot.called:
                self._call(slot)
            else:
                self._schedule(slot, waiter.waiter_ttl_s / 3, request.retry_ms)
                waiter.prepare(partial(self._tried, slot))
