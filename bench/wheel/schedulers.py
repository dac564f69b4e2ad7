"""One small interface for everything that can hold timers, and its implementations, each used as its users use it.

Every method goes through all timers in a loop of its own, so that no call of the interface is charged to a timer. The
timers are objects in random order of their addresses, as those of a long-running program are: at a million of them most
of the time goes into waiting for memory, and timers in a row would flatter everybody.
"""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from heapq import heappush, heapreplace
from typing import Any, ClassVar

from sortedcontainers import SortedList

from wheel_lock.wheel import Wheel, WheelEntry

SCHEDULE, ADVANCE, CANCEL = "schedule", "advance and re-arm", "cancel"
OPERATIONS = (SCHEDULE, ADVANCE, CANCEL)


class Scheduler(ABC):
    """Something that holds ``count`` timers.

    Attributes:
        name: What it is called in tables.
        operations: What it can do without waiting for real time.
        most: The largest number of timers that it is asked to hold.
        why_not_more: Why it is not asked for more.
    """

    name: ClassVar[str]
    operations: ClassVar[tuple[str, ...]] = OPERATIONS
    most: ClassVar[int] = 1_000_000
    why_not_more: ClassVar[str] = ""

    @abstractmethod
    def __init__(self, count: int) -> None: ...

    @abstractmethod
    def schedule(self, ticks: Sequence[int]) -> None:
        """Put every timer in, each at its tick."""

    @abstractmethod
    def advance_and_rearm(self, to_tick: int, after: int) -> int:
        """Take out what is due at ``to_tick``, put it in again ``after`` ticks later, and return how many that were."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel every timer, in the order of the last shuffle."""

    @abstractmethod
    def shuffle(self) -> None:
        """Change the order in which timers are scheduled and cancelled. Not measured."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do here
        """Give back what it took from the system. Not measured."""


class WheelTimer(WheelEntry):
    __slots__ = ()

    def __init__(self) -> None:
        self.tick = -1


class WheelScheduler(Scheduler):
    """Ours."""

    name = "wheel"

    def __init__(self, count: int) -> None:
        self.timers = [WheelTimer() for _ in range(count)]
        self.wheel: Wheel[WheelTimer] = Wheel()
        self.shuffle()

    def shuffle(self) -> None:
        random.Random(1).shuffle(self.timers)

    def schedule(self, ticks: Sequence[int]) -> None:
        schedule = self.wheel.schedule
        for timer, tick in zip(self.timers, ticks, strict=True):
            schedule(timer, tick)

    def advance_and_rearm(self, to_tick: int, after: int) -> int:
        due = self.wheel.advance(to_tick)
        if due:
            self.wheel.rearm(due, after)
        return len(due)

    def cancel(self) -> None:
        cancel = self.wheel.cancel
        for timer in self.timers:
            cancel(timer)


class HeapTimer:
    __slots__ = ("cancelled", "item")

    item: tuple[int, int, HeapTimer]

    def __init__(self) -> None:
        self.cancelled = False


class HeapScheduler(Scheduler):
    """heapq as its documentation shows it: tuples with a number against ties, cancelled timers left until they come up.

    So its cancel is one assignment, and the price is paid later. Popping and pushing in one call, heapreplace, is the
    fastest way to re-arm that it has.
    """

    name = "heapq"

    def __init__(self, count: int) -> None:
        self.timers = [HeapTimer() for _ in range(count)]
        self.heap: list[tuple[int, int, HeapTimer]] = []
        self.number = 0
        self.shuffle()

    def shuffle(self) -> None:
        random.Random(1).shuffle(self.timers)

    def schedule(self, ticks: Sequence[int]) -> None:
        heap = self.heap
        for number, (timer, tick) in enumerate(zip(self.timers, ticks, strict=True), self.number):
            heappush(heap, (tick, number, timer))
        self.number += len(ticks)

    def advance_and_rearm(self, to_tick: int, after: int) -> int:
        heap, number = self.heap, self.number
        while heap[0][0] <= to_tick:
            tick, _, timer = heap[0]
            if not timer.cancelled:
                heapreplace(heap, (tick + after, number, timer))
                number += 1
        count = number - self.number
        self.number = number
        return count

    def cancel(self) -> None:
        for timer in self.timers:
            timer.cancelled = True


class SortedListScheduler(Scheduler):
    """sortedcontainers.SortedList of the same tuples; a timer knows its tuple, to be removed by it."""

    name = "SortedList"

    def __init__(self, count: int) -> None:
        self.timers = [HeapTimer() for _ in range(count)]
        self.sorted: SortedList[Any] = SortedList()
        self.number = 0
        self.shuffle()

    def shuffle(self) -> None:
        random.Random(1).shuffle(self.timers)

    def schedule(self, ticks: Sequence[int]) -> None:
        add = self.sorted.add
        for number, (timer, tick) in enumerate(zip(self.timers, ticks, strict=True), self.number):
            timer.item = item = (tick, number, timer)
            add(item)
        self.number += len(ticks)

    def advance_and_rearm(self, to_tick: int, after: int) -> int:
        due_count = self.sorted.bisect_left((to_tick + 1,))
        pop, add, number = self.sorted.pop, self.sorted.add, self.number
        due = [pop(0) for _ in range(due_count)]
        for tick, _, timer in due:
            timer.item = item = (tick + after, number, timer)
            add(item)
            number += 1
        self.number = number
        return due_count

    def cancel(self) -> None:
        remove = self.sorted.remove
        for timer in self.timers:
            remove(timer.item)


class TickingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is moved by hand."""

    tick = 0.0

    def time(self) -> float:
        return self.tick


class AsyncioScheduler(Scheduler):
    """call_at and its handles, fired by a loop that stops at once: running the callbacks is part of the price."""

    name = "asyncio call_at"
    most = 100_000
    why_not_more = "the same heap as heapq, with more around it: a million take minutes"

    def __init__(self, count: int) -> None:
        self.loop = TickingLoop()
        self.handles: list[asyncio.TimerHandle | None] = [None] * count
        self.order = list(range(count))
        self.after = 0
        self.fired = 0
        self.shuffle()

    def shuffle(self) -> None:
        random.Random(1).shuffle(self.order)

    def close(self) -> None:
        self.loop.close()

    def schedule(self, ticks: Sequence[int]) -> None:
        call_at, handles, fire = self.loop.call_at, self.handles, self._fire
        for index, tick in zip(self.order, ticks, strict=True):
            handles[index] = call_at(tick, fire, index, tick)

    def _fire(self, index: int, tick: int) -> None:
        tick += self.after
        self.handles[index] = self.loop.call_at(tick, self._fire, index, tick)
        self.fired += 1

    def advance_and_rearm(self, to_tick: int, after: int) -> int:
        self.fired = 0
        self.after = after
        self.loop.tick = to_tick
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        return self.fired

    def cancel(self) -> None:
        handles = self.handles
        for index in self.order:
            handle = handles[index]
            assert handle is not None
            handle.cancel()


class ThreadScheduler(Scheduler):
    """threading.Timer, a thread for each; to advance would be to wait for real time."""

    name = "threading.Timer"
    operations = (SCHEDULE, CANCEL)
    most = 1_000
    why_not_more = "a thread for each"

    def __init__(self, count: int) -> None:
        self.timers: list[threading.Timer] = []

    def shuffle(self) -> None:
        random.Random(1).shuffle(self.timers)

    def schedule(self, ticks: Sequence[int]) -> None:
        for tick in ticks:
            timer = threading.Timer(3600.0 + tick, int)
            timer.start()
            self.timers.append(timer)

    def advance_and_rearm(self, to_tick: int, after: int) -> int:
        raise NotImplementedError

    def cancel(self) -> None:
        for timer in self.timers:
            timer.cancel()
        for timer in self.timers:
            timer.join()

    def close(self) -> None:
        self.cancel()


SCHEDULERS: tuple[type[Scheduler], ...] = (
    WheelScheduler,
    HeapScheduler,
    SortedListScheduler,
    AsyncioScheduler,
    ThreadScheduler,
)
