"""The queue of a fair lock, as far as it stands in this process.

The server keeps the order, so each waiter asks for itself: once to take its place, then every so often to keep it, for
who is not heard of any more is skipped. A wake-up calls one of them by name.
"""

from __future__ import annotations

from functools import partial

from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.requests.base import PATIENCE
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.wait_queue import AnyLine
from wheel_lock.engine.waiting.waiter import Acquisition, Registry
from wheel_lock.protocol.tokens import TOKEN_CHARACTERS
from wheel_lock.wheel import WheelEntry


class _Place(WheelEntry):
    """Where one waiter stands. On the wheel it waits for the waiter's next look."""

    __slots__ = ("_queue", "again", "called", "group", "pace", "paused", "trying", "waiter")

    def __init__(self, queue: Queue, waiter: Acquisition) -> None:
        self.tick = -1
        self.group = PATIENCE
        self._queue = queue
        self.waiter = waiter
        self.trying = False
        self.again = False  # try once more when the current try is over
        self.called = False  # woken while a try was under way, which may have been refused just before
        self.pace = Pace(queue.timer.scale.tick_s)
        self.paused = False  # woken in vain before: the next try waits for its tick

    def late(self, now: float) -> None:
        """It is time to be heard of again."""
        self._queue.look(self)

    @property
    def above(self) -> EngineState:
        """The engine."""
        return self._queue.above

    def crashed(self, error: Exception) -> None:
        """End all waits: the library's own code has failed in the middle of one."""
        self._queue.crashed(error)


class Queue(AnyLine):
    """Those each of whom asks for itself. On the wheel it waits for its end, when nobody stands in it any more."""

    __slots__ = ("_places",)

    def __init__(self, lines: Registry, first: Acquisition) -> None:
        super().__init__(lines, first)
        self._places: dict[bytes, _Place] = {}  # by the name under which the server knows the waiter

    def _name(self, waiter: Acquisition) -> bytes:
        return waiter.request.lease.token[:TOKEN_CHARACTERS]

    def join(self, waiter: Acquisition) -> None:
        """Stand at the end: its first try has taken a place there."""
        super().join(waiter)
        self.timer.wheel.cancel(self)
        self._places[self._name(waiter)] = place = _Place(self, waiter)
        if self._subscribed:
            self.look(place)  # what was published since its own try, nobody has listened to
        else:
            self._look_later(place, None)

    def left(self, waiter: Acquisition) -> None:
        """Its place is free."""
        place = self._places.pop(self._name(waiter))
        self.timer.wheel.cancel(place)

    def disperse(self) -> list[Acquisition]:
        """Send everybody away, without a word; return who stood in it."""
        for place in self._places.values():
            self.timer.wheel.cancel(place)
        self._places.clear()
        return super().disperse()

    def time_is_up(self, waiter: Acquisition) -> None:
        """A waiter's time is up: a last try, because nothing else may have told it that it is its turn."""
        waiter.last = True
        self.look(self._places[self._name(waiter)])

    def listening(self, holds: bool) -> None:
        """The subscription begins to hold, or does not: what was published before was not heard, so all look once more."""
        super().listening(holds)
        if holds:
            for place in list(self._places.values()):
                self._call(place)

    def woken(self, message: bytes) -> None:
        """A message names the waiter whose turn it is; any user who may publish can have sent it. The server decides."""
        place = self._places.get(message)
        if place is not None:
            self._call(place)

    def _call(self, place: _Place) -> None:
        """Have a waiter try: at once, or, if earlier wake-ups were in vain, at the next tick."""
        if place.trying:
            place.called = True
        elif not place.paused:
            timer = self.timer
            if place.pace.allows(timer.now):
                self.look(place)
            else:
                place.paused = True
                timer.wheel.cancel(place)
                timer.wheel.schedule(place, timer.scale.ceil(timer.clock.now()))

    def look(self, place: _Place) -> None:
        """Have a waiter ask."""
        if place.trying:
            place.again = True
            return
        self.timer.wheel.cancel(place)
        place.trying, place.again, place.called, place.paused = True, False, False, False
        place.pace.tried(self.timer.now)
        place.waiter.try_once(partial(self._tried, place), waiting=True)

    def _tried(self, place: _Place) -> None:
        place.trying = False
        waiter = place.waiter
        if waiter.over or waiter.line is not self:
            return
        request = waiter.request
        if request.cut_short and request.operation.error is not None:
            self._go(waiter).fail(request.operation.error)
        elif request.operation.error is not None:
            self.fail(request.operation.error)
        elif request.operation.result():
            self._go(waiter).succeed(request.leases)
        elif waiter.last and not place.again:
            self._go(waiter).refuse()
        elif place.again:
            self.look(place)
        else:
            place.pace.refused(self.timer.now, request.retry_ms)
            if place.called:
                self._call(place)
            else:
                self._look_later(place, request.retry_ms)

    def _look_later(self, place: _Place, retry_ms: int | None) -> None:
        pause_s = place.waiter.patience_s / 3
        if retry_ms is not None:
            pause_s = min(pause_s, (retry_ms + 1) / 1000)  # a millisecond more, because the server rounds down
        timer = self.timer
        timer.wheel.schedule(place, timer.scale.ceil(timer.clock.now() + pause_s))
