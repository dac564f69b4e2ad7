"""A process that contends for locks while its threads are struck by exceptions from outside, and its tasks are cancelled.

Threads are struck by another one, which sets an exception, mostly where they have just waited. The main thread is struck
at a random place among all those of the library's code where the interpreter runs signals' handlers.

It is forked by a nursery. The locks are plain ones, in two contexts, each on a timer of its own; a lease goes by its
token. What the process writes is read by test_struck_callers.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import main_thread
from types import FrameType
from typing import Any

from redis.exceptions import LockError

from tests.faults.server_log import Released
from tests.support.interruptions import LIBRARY, Interruption, Struck
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext, LockTimeout
from wheel_lock.testing import settle

LONG_S = 15.0  # only a deadlock, or a lock that is left behind, takes longer
NAMES_PER_S = 80
HARDLY_EVER = 0.1  # how often a thread is struck that waits for an answer: most of their time they do
SWITCH_S = 0.00002  # so that threads are struck at more places than those where they wait
PLACES = 90  # about as many as an acquire and a release come by
OURS = ("wheel_lock.engine.requests.", "wheel_lock.engine.waiting.waiter", "wheel_lock.lease")
PHASES = {
    "acquire": ("acquire", "__enter__"),
    "release": ("release", "__exit__"),
}

now = time.monotonic
_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc


class StruckHard(BaseException):
    """What ends threads, such as SystemExit."""


def phase_of(frames: list[FrameType]) -> str:
    """Where a thread is: in the library's "acquire" or "release", or in its own "block"."""
    inside = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename.startswith(LIBRARY)]
    for phase, names in PHASES.items():
        if any(name in names for name in inside):
            return phase
    return "other" if inside else "block"


class Notes:
    """What has happened in this process."""

    def __init__(self) -> None:
        self.beliefs: list[list[Any]] = []  # the fields of checker.Belief
        self.released: list[Released] = []
        self.troubles: list[str] = []
        self.struck: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.left: list[str] = []

    def strike(self, error: BaseException) -> None:
        """Note where a thread was struck."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        self.struck[phase_of(frames)] += 1
        place = next((frame for frame in reversed(frames) if frame.f_code.co_filename.startswith(LIBRARY)), frames[-1])
        self.places[f"{place.f_code.co_qualname}:{place.f_lineno}"] += 1

    def write(self, path: str) -> None:
        Path(path).write_text(json.dumps(vars(self)))


class Worker:
    """Acquires one lock after the other in one context; `notes` takes what it believes. A round may end anywhere."""

    def __init__(self, context: LockContext, names: list[str], timeout_s: float, notes: Notes, seed: str) -> None:
        self.context = context
        self.notes = notes
        self.random = random.Random(seed)
        self.over = False
        self._names = names
        self._options: dict[str, Any] = {"timeout": timeout_s, "renew_every": 0.05}
        self._kept: dict[str, Any] = {}  # the lock objects that it uses again and again

    def lock(self, makes: Any) -> Any:
        """A new lock object for one of the names, or one that it has used before."""
        # All move on together: where nobody waits there are first tries, and followers.
        name = self._names[int(now() * NAMES_PER_S + self.random.random()) % len(self._names)]
        if self.random.random() < 0.5:
            return makes.lock(name, retry_every=self.random.choice([None, None, 0.005]), **self._options)
        if name not in self._kept:
            self._kept[name] = makes.lock(name, **self._options)
        return self._kept[name]

    def limit(self) -> dict[str, Any]:
        """How an acquire by hand waits: not at all, for a while, or by asking."""
        return self.random.choice([{"blocking": False}, {"blocking_timeout": 0.0}, {"blocking_timeout": 0.03}, {}])

    def believe(self, lock: Any) -> list[Any]:
        """Begin to note a belief; the interval grows as long as `look` is called."""
        since = now()
        belief = [str(lock.name), lock.token.decode(), os.getpid(), since, since, None, "running"]
        if lock.is_held:
            self.notes.beliefs.append(belief)
        return belief

    def look(self, lock: Any, belief: list[Any]) -> None:
        at = now()
        if lock.is_held:
            belief[4] = at

    def released(self, belief: list[Any]) -> None:
        """A release has returned."""
        self.notes.released.append(Released(belief[1], now()))

    def trouble(self, error: BaseException) -> None:
        self.notes.troubles.append(f"{type(error).__name__}: {error}")


class BlockingWorker(Worker):
    """A worker that blocks its thread."""

    def round(self) -> None:
        """Acquire a lock, hold it for a while, and release it."""
        lock = self.lock(self.context)
        try:
            if self.random.random() < 0.5:
                with lock:
                    belief = self._hold(lock)
                self.released(belief)
            elif lock.acquire(**self.limit()):
                try:
                    belief = self._hold(lock)
                finally:
                    lock.release()
                self.released(belief)
        except LockTimeout:
            pass  # a busy machine may keep an answer for longer than a caller with little time waits
        except LockError as error:
            self.trouble(error)

    def _hold(self, lock: Any) -> list[Any]:
        belief = self.believe(lock)
        for _ in range(self.random.choice([0, 0, 1, 5])):
            time.sleep(self.random.uniform(0.0, 0.001))
            self.look(lock, belief)
        return belief


class ThreadWorker(BlockingWorker):
    """A worker that is a thread."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pending = True  # an exception has been set, and may not have struck yet
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.over:
            try:
                while not self.over:
                    self.pending = False  # what was set before has struck, or was swallowed
                    self.round()
            except (Struck, StruckHard) as error:
                self.notes.strike(error)  # nothing is set while something is pending, so nothing strikes here


class MainWorker(BlockingWorker):
    """A worker on the main thread."""

    def work(self) -> None:
        """Work on until it is over, with an interruption in each round."""
        while not self.over:
            interruption = Interruption(self.random.randrange(PLACES))
            try:
                interruption.begin()
                self.round()
            except Struck as error:
                self.notes.strike(error)
            finally:
                interruption.end()


class TaskWorker(Worker):
    """A worker that is a task, and is cancelled now and then by its own loop."""

    async def run(self) -> None:
        """Work on until it is over."""
        while not self.over:
            try:
                await self._round()
            except asyncio.CancelledError:
                self.notes.struck["task"] += 1

    async def _round(self) -> None:
        lock = self.lock(self.context.asyncio)
        task = asyncio.current_task()
        if task is not None and self.random.random() < 0.3:
            asyncio.get_running_loop().call_soon(task.cancel)  # while its first try is in flight
        try:
            if self.random.random() < 0.5:
                async with lock:
                    belief = await self._hold(lock)
                self.released(belief)
            elif await lock.acquire(**self.limit()):
                try:
                    belief = await self._hold(lock)
                finally:
                    await lock.release()
                self.released(belief)
        except LockTimeout:
            pass  # a busy machine may keep an answer for longer than a caller with little time waits
        except LockError as error:
            self.trouble(error)

    async def _hold(self, lock: Any) -> list[Any]:
        belief = self.believe(lock)
        for _ in range(self.random.choice([0, 0, 1, 5])):
            await asyncio.sleep(self.random.uniform(0.0, 0.001))
            self.look(lock, belief)
        return belief


async def run_tasks(workers: list[TaskWorker], luck: random.Random, is_over: Callable[[], bool]) -> None:
    """Run workers as tasks of one loop, and cancel one of them now and then."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    while not is_over():
        await asyncio.sleep(luck.uniform(0.0, 0.01))
        luck.choice(tasks).cancel()
    for worker in workers:
        worker.over = True
    await asyncio.wait_for(asyncio.gather(*tasks), LONG_S)


class Striker:
    """Sets exceptions in threads that work, at random moments, most where they have struck least."""

    def __init__(self, workers: list[ThreadWorker], notes: Notes, seed: str) -> None:
        self._workers = workers
        self._notes = notes
        self._random = random.Random(seed)

    def strike(self, enough: int, until: float, limit: float) -> None:
        """Strike until `until`, and on until each phase has been struck often enough, or the time limit is over."""
        while now() < until or (self._least() < enough and now() < limit):
            time.sleep(self._random.choice([0.0, 0.001]))
            worker = self._random.choice(self._workers)
            if not worker.pending and self._worthwhile(worker):
                self._set(worker, self._random.choice([Struck, StruckHard]))
                worker.pending = True
        for worker in self._workers:
            self._set(worker, None)  # what has not struck until now does not strike any more

    def _least(self) -> int:
        return min(self._notes.struck[phase] for phase in ("acquire", "release", "block"))

    def _worthwhile(self, worker: ThreadWorker) -> bool:
        frame = sys._current_frames().get(worker.thread.ident or 0)
        if frame is None or (frame.f_code.co_name == "wait" and self._random.random() > HARDLY_EVER):
            return False
        frames: list[FrameType] = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return self._notes.struck[phase_of(frames)] <= 2 * self._least() + 5

    def _set(self, worker: ThreadWorker, error: type[BaseException] | None) -> None:
        _set_exception(ctypes.c_ulong(worker.thread.ident or 0), None if error is None else ctypes.py_object(error))


def census() -> Counter[str]:
    """How many leases, requests and waiters there are, by class."""
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    return Counter(kind.__qualname__ for kind in kinds if f"{kind.__module__}.".startswith(OURS))


def registries(context: LockContext) -> dict[str, Any]:
    """Whatever an engine keeps of callers and leases. Empty, or zero, when there are none."""
    engine, stats = context._engine, context.stats()
    return {
        "held": stats.held,
        "waiting": stats.waiting,
        "leases": len(engine.leases.held),
        "being acquired": engine.leases.acquiring,
        "first tries": len(engine.wait_queues.in_flight),
        "pollers": len(engine.wait_queues.pollers),
        "queues": len(engine.wait_queues),
        "unanswered": engine.busy,
        "expected": len(engine.router.shard_of(b"any").node._expected),
        "on the wheel": context._engine.timer.next_due_at() is not None,
    }


def look_for_what_is_left(contexts: list[LockContext], names: list[str], before: Counter[str], notes: Notes) -> None:
    """Acquire every name once more, and then look at what the engines have kept."""
    for context in contexts:
        for name in names:
            try:
                with context.lock(name, blocking_timeout=LONG_S):
                    pass
            except LockError as error:
                notes.left.append(f"{name} cannot be acquired: {error}")
                return
    for number, context in enumerate(contexts):
        settle(context._engine.timer)
        try:
            eventually(lambda context=context: not any(registries(context).values()), 10.0, interval_s=0.01)  # type: ignore[misc]
        except AssertionError:
            kept = {what: value for what, value in registries(context).items() if value}
            notes.left.append(f"context {number} keeps {kept}")
    try:
        eventually(lambda: not census() - before, 10.0, interval_s=0.05)
    except AssertionError:
        notes.left.append(f"these live on: {dict(census() - before)}")


def contend(contexts: list[LockContext], settings: dict[str, Any], notes: Notes) -> None:
    """Have all workers work until they have been struck often enough."""
    names, seed = settings["names"], f"{settings['seed']}:{settings['number']}"
    arguments = [(context, names, settings["timeout"], notes) for context in contexts]
    threads = [
        ThreadWorker(*shared, f"{seed}:{place}:{number}")
        for place, shared in enumerate(arguments)
        for number in range(settings["threads"])
    ]
    tasks = [
        TaskWorker(*shared, f"{seed}:{place}:{number}:task")
        for place, shared in enumerate(arguments)
        for number in range(settings["tasks"])
    ]
    over = threading.Event()
    loop = threading.Thread(target=lambda: asyncio.run(run_tasks(tasks, random.Random(seed), over.is_set)))
    loop.start()
    main_worker = MainWorker(*arguments[0], f"{seed}:main")

    main_ended = threading.Event()

    def strike() -> None:
        Striker(threads, notes, seed).strike(
            settings["enough"], now() + settings["duration"], now() + settings["limit"]
        )
        main_worker.over = True
        if not main_ended.wait(LONG_S):
            notes.left.append(f"the main thread is stuck in {sys._current_frames()[main_thread().ident or 0]}")
            notes.write(settings["path"])
            os._exit(0)

    striking = threading.Thread(target=strike)
    striking.start()
    main_worker.work()
    main_ended.set()
    striking.join()
    over.set()
    for worker in threads:
        worker.over = True
    until = now() + LONG_S
    for worker in threads:
        worker.thread.join(max(until - now(), 0.0))
        if worker.thread.is_alive():
            frame = sys._current_frames().get(worker.thread.ident or 0)
            notes.left.append(f"a thread is stuck in {frame}")
            return
    loop.join(max(until - now(), 0.0))
    if loop.is_alive():
        notes.left.append("the tasks are stuck")


def main(text: str) -> None:
    settings = json.loads(text)
    notes = Notes()
    gc.disable()  # an exception that strikes a finaliser is swallowed
    sys.setswitchinterval(SWITCH_S)
    contexts = [
        LockContext.from_url(settings["url"], timer=HashedWheelTimer(), response_timeout=2 * LONG_S) for _ in range(2)
    ]
    for context in contexts:
        with context.lock("warm-up"):
            pass
    before = census()
    contend(contexts, settings, notes)
    look_for_what_is_left(contexts, settings["names"], before, notes)
    if not notes.left:
        for context in contexts:
            context.close(LONG_S)
    notes.write(settings["path"])
    if notes.left:
        os._exit(0)  # what is stuck would be waited for
