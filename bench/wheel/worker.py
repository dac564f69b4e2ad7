"""A worker of the line protocol with many timers: those of one implementation, each used as its users use it.

    python -m bench.wheel.worker IMPLEMENTATION wheel URL OPTIONS

The URL is not used. OPTIONS are ``timers``, ``spread_s``, ``ahead_s`` and ``idle_s``. It reads

* ``go schedule`` and ``go cancel``: what a call costs while ``timers`` are pending: ``ns`` pass in the calling thread, and
  ``cpu_ns`` is the CPU time of the process, with what the timer's own thread does because of the call.
* ``go due``: ``timers`` become due over ``spread_s`` seconds, from ``ahead_s`` after the first start: the CPU time of
  the process per timer, from its start to its end, and how late the tasks run.
* ``go idle``: CPU seconds and wake-ups (voluntary context switches) per second, over ``idle_s`` seconds without a timer,
  and as many with ``timers`` far in the future.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

from sortedcontainers import SortedList

from bench.targets.timers import FAR_S, LAPS, STARTED, AsyncioTimers, WheelTimers
from bench.wheel.schedulers import ThreadScheduler

LOOK_S = 0.2
QUIET = 0.02  # of one core

Task = Callable[[], object]


class OwnThread:
    """What is common to those that call from threads of their own."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.finish = self._done.set

    def wait(self) -> None:
        self._done.wait()
        self._done.clear()

    def settle(self) -> None:
        """Do nothing: a call has done all that there is to do."""


class ThreadTimers(OwnThread):
    """threading.Timer, a thread for each."""

    def start(self, task: Task, delay_s: float) -> threading.Timer:
        timer = threading.Timer(delay_s, task)
        timer.daemon = True
        timer.start()
        return timer


class QueuedTimer:
    """A task in a queue."""

    __slots__ = ("item", "queue", "task")

    def __init__(self, queue: QueueTimers, due_at: float, number: int, task: Task) -> None:
        self.queue = queue
        self.item = (due_at, number, self)
        self.task: Task | None = task

    def cancel(self) -> None:
        self.task = None
        self.queue.cancelled(self)


class QueueTimers(OwnThread):
    """A heap, and a thread that sleeps until its first timer is due.

    A cancelled timer stays in the heap until it is due, as the documentation of heapq shows it.
    """

    _make: Callable[[], Any] = list
    _push: Callable[[Any, Any], None] = staticmethod(heappush)
    _pop: Callable[[Any], Any] = staticmethod(heappop)

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._number = itertools.count()
        self._queue = self._make()
        threading.Thread(target=self._run, daemon=True).start()

    def start(self, task: Task, delay_s: float) -> QueuedTimer:
        timer = QueuedTimer(self, time.monotonic() + delay_s, next(self._number), task)
        with self._changed:
            self._push(self._queue, timer.item)
            if self._queue[0] is timer.item:
                self._changed.notify()
        return timer

    def cancelled(self, timer: QueuedTimer) -> None:
        """Do nothing."""

    def _run(self) -> None:
        queue = self._queue
        while True:
            with self._changed:
                while not queue or queue[0][0] > time.monotonic():
                    self._changed.wait(queue[0][0] - time.monotonic() if queue else None)
                task = self._pop(queue)[2].task
            if task is not None:
                task()


class SortedTimers(QueueTimers):
    """The same with a SortedList, from which a cancelled timer is removed."""

    _make = SortedList
    _push = staticmethod(SortedList.add)
    _pop = staticmethod(lambda queue: queue.pop(0))

    def cancelled(self, timer: QueuedTimer) -> None:
        with self._changed:
            self._queue.discard(timer.item)


IMPLEMENTATIONS: dict[str, Callable[[], Any]] = {
    "wheel": WheelTimers,
    "asyncio": AsyncioTimers,
    "threading": ThreadTimers,
    "heapq": QueueTimers,
    "sortedlist": SortedTimers,
}


class Measurements:
    """What is measured of one implementation."""

    def __init__(self, timers: Any, options: dict[str, Any]) -> None:
        self._timers = timers
        self._number: int = options.get("timers", 100_000)
        self._spread_s: float = options.get("spread_s", 10.24)
        self._ahead_s: float = options.get("ahead_s", 2.0)
        self._idle_s: float = options.get("idle_s", 3.0)
        self._chance = random.Random(1)
        if isinstance(timers, ThreadTimers) and self._number > ThreadScheduler.most:
            raise NotImplementedError(f"no more than {ThreadScheduler.most:,} timers: {ThreadScheduler.why_not_more}")

    def go(self, order: str) -> dict[str, Any]:
        if order in ("schedule", "cancel"):
            return self._calls(order)
        if order == "due":
            return self._due()
        if order == "idle":
            return self._idle()
        raise ValueError(f"no order {order}")

    def _calls(self, order: str) -> dict[str, Any]:
        pending = self._start_far(self._number)
        count = max(self._number // STARTED, 1)
        call_s = cpu_s = 0.0
        for _ in range(LAPS):
            started: list[Any] = []
            delays = [self._far() for _ in range(count)]
            start = self._timers.start
            for what in ("schedule", "cancel"):
                cpu_began, began = time.process_time(), time.perf_counter()
                if what == "schedule":
                    started = [start(bool, delay_s) for delay_s in delays]
                else:
                    for timer in started:
                        timer.cancel()
                ended = time.perf_counter()
                self._timers.settle()
                if what == order:
                    call_s += ended - began
                    cpu_s += time.process_time() - cpu_began
                self._chance.shuffle(started)
        self._cancel(pending)
        return {"ns": call_s * 1e9 / LAPS / count, "cpu_ns": cpu_s * 1e9 / LAPS / count}

    def _due(self) -> dict[str, Any]:
        number, late_s = self._number, list[float]()
        delays = [self._ahead_s + self._chance.uniform(0.0, self._spread_s) for _ in range(number)]

        def run(due_at: float, *_: object) -> None:
            late_s.append(time.monotonic() - due_at)
            if len(late_s) == number:
                self._timers.finish()

        began = time.process_time()
        for delay_s in delays:
            self._timers.start(partial(run, time.monotonic() + delay_s), delay_s)
        self._timers.wait()
        cpu_s = time.process_time() - began
        late_s.sort()
        return {
            "cpu_us": cpu_s * 1e6 / number,
            "p50_ms": late_s[number // 2] * 1000,
            "p99_ms": late_s[number * 99 // 100] * 1000,
            "max_ms": late_s[-1] * 1000,
        }

    def _idle(self) -> dict[str, Any]:
        empty = self._watched()
        pending = self._start_far(self._number)
        found = {"empty": empty, "pending": self._watched()}
        self._cancel(pending)
        return found

    def _watched(self) -> dict[str, float]:
        busy = QUIET
        while busy >= QUIET:  # what earlier calls have left to the timer's thread
            busy = self._rest(LOOK_S)["cpu"]
        return self._rest(self._idle_s)

    def _rest(self, seconds: float) -> dict[str, float]:
        cpu_s, began = time.process_time(), time.monotonic()
        wake_ups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        if isinstance(self._timers, AsyncioTimers):  # this thread runs its loop
            self._timers.start(self._timers.finish, seconds)
            self._timers.wait()
        else:
            time.sleep(seconds)
        wake_ups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - wake_ups
        elapsed_s = time.monotonic() - began
        return {"cpu": (time.process_time() - cpu_s) / elapsed_s, "wake_ups": wake_ups / elapsed_s}

    def _far(self) -> float:
        return self._chance.uniform(FAR_S, 2 * FAR_S)

    def _start_far(self, number: int) -> list[Any]:
        started = [self._timers.start(bool, self._far()) for _ in range(number)]
        self._timers.settle()
        return started

    def _cancel(self, started: list[Any]) -> None:
        for timer in started:
            timer.cancel()
        self._timers.settle()


def say(line: str) -> None:
    print(" ".join(line.split()), flush=True)


def main(implementation: str, mode: str, options: str) -> None:
    try:
        if mode != "wheel":
            raise ValueError(f"no mode {mode}")
        measurements = Measurements(IMPLEMENTATIONS[implementation](), json.loads(options))
    except NotImplementedError as error:
        say(f"failed {error}")
        sys.exit(1)
    except Exception as error:
        say(f"failed {error!r}")
        sys.exit(1)
    say("up")
    for line in sys.stdin:
        try:
            say(f"result {json.dumps(measurements.go(line.strip().removeprefix('go ')))}")
        except Exception as error:
            say(f"failed {error!r}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4])
