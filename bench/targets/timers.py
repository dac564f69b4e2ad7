"""A worker with many timers of users: HashedWheelTimer's, or its rival's, asyncio's.

    python -m bench.targets.timers ours|rival TIMERS SECONDS

It reads ``calls`` or ``due``. ``calls`` is what it costs to start and to cancel a timer while TIMERS are pending. ``due``
is what it costs from the start of TIMERS timers, due over SECONDS, to the call of the last one, and how late they are
called. Costs are CPU time of the process, whichever of its threads has the work.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.workers import serve
from wheel_lock import HashedWheelTimer

FAR_S = 3600.0
AHEAD_S = 2.0  # all timers have been started before the first is due
STARTED = 5  # one of so many is started and cancelled while the others are pending
LAPS = STARTED + 1  # asyncio removes what was cancelled once that is more than half of its heap


class WheelTimers:
    """Ours, from a thread of the user."""

    def __init__(self) -> None:
        self._timer = HashedWheelTimer()
        self._done = threading.Event()
        self.start = self._timer.new_timeout
        self.finish = self._done.set

    def wait(self) -> None:
        """Return after :meth:`finish`."""
        self._done.wait()
        self._done.clear()

    def settle(self) -> None:
        """Wait until the timer's thread has done what it was asked."""
        self._timer.post(self.finish)
        self.wait()


class AsyncioTimers:
    """The rival's, from the thread of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.finish = self._loop.stop
        self.wait = self._loop.run_forever

    def start(self, task: Callable[..., object], delay_s: float) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, task)

    def settle(self) -> None:
        """Let the loop remove what was cancelled."""
        self._loop.call_soon(self.finish)
        self.wait()


def per_call(timers: Any, pending: int) -> dict[str, float]:
    """Return the CPU time of starting and of cancelling one timer while so many are pending."""
    chance = random.Random(1)
    kept = [timers.start(print, chance.uniform(FAR_S, 2 * FAR_S)) for _ in range(pending)]
    timers.settle()
    count = pending // STARTED
    start_s = cancel_s = 0.0
    for _ in range(LAPS):
        delays = [chance.uniform(FAR_S, 2 * FAR_S) for _ in range(count)]
        began = time.process_time()
        started = [timers.start(print, delay_s) for delay_s in delays]
        timers.settle()
        between = time.process_time()
        for timer in started:
            timer.cancel()
        timers.settle()
        start_s += between - began
        cancel_s += time.process_time() - between
    for timer in kept:
        timer.cancel()
    timers.settle()
    return {"start us": start_s * 1e6 / LAPS / count, "cancel us": cancel_s * 1e6 / LAPS / count}


def until_called(timers: Any, number: int, seconds: float) -> dict[str, float]:
    """Return the CPU time of one timer from its start to its call, and how late those are."""
    chance, late_s = random.Random(1), list[float]()
    delays = [AHEAD_S + chance.uniform(0.0, seconds) for _ in range(number)]

    def called(due_at: float, *_: object) -> None:
        late_s.append(time.monotonic() - due_at)
        if len(late_s) == number:
            timers.finish()

    began = time.process_time()
    for delay_s in delays:
        timers.start(partial(called, time.monotonic() + delay_s), delay_s)
    timers.wait()
    cpu_s = time.process_time() - began
    late_s.sort()
    return {
        "cpu us": cpu_s * 1e6 / number,
        "late p50 ms": late_s[number // 2] * 1000,
        "late p99 ms": late_s[number * 99 // 100] * 1000,
    }


def main(side: str, number: int, seconds: float) -> None:
    timers = WheelTimers() if side == "ours" else AsyncioTimers()
    serve(lambda line: per_call(timers, number) if line == "calls" else until_called(timers, number, seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
