"""One process of a crowd: threads, or tasks, that contend for every kind of lock, and say what they believed and when.

``python -m tests.crowds.crowd URL NUMBER SECONDS``: an odd number has tasks. It says "begun" when it is connected, and
"done" when each worker has had its turns and all has been released. It reads a line, and then prints what was believed as
JSON: a list of the fields of `Belief`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from wheel_lock import LockContext, LockLost, LockTimeout, LockUnavailable, LostEvent, WheelLockError

TIMEOUT_S = 1.0
WORKERS = 4  # workers of each kind
PERMITS = 3
CROWD = 1000  # exceeds the number of readers

now = time.monotonic  # one clock for all processes of a host


class Belief(NamedTuple):
    """From `since` to `until` a holder believed to have `share` of the `room` that there is under a name.

    The interval is recorded from inside, so it is never too long. `reports` counts the reports of a loss; `fence`
    is 0 where there is none.
    """

    name: str
    holder: str
    share: int
    room: int
    since: float
    until: float
    lost: bool
    reports: int
    fence: int


class Kind(NamedTuple):
    """A kind of lock, and which share of its name it takes."""

    make: Callable[..., Any]
    share: int = 1
    room: int = 1


KINDS = {
    "exclusive": Kind(lambda locks, **terms: locks.lock("exclusive", fencing=True, **terms)),
    "asking": Kind(lambda locks, **terms: locks.lock("exclusive", fencing=True, retry_every=0.02, **terms)),
    "fair": Kind(lambda locks, **terms: locks.fair_lock("fair", **terms)),
    "reentrant": Kind(lambda locks, **terms: locks.reentrant_lock("reentrant", **terms)),
    "multi": Kind(lambda locks, **terms: locks.multi_lock(["multi", f"other:{random.randrange(3)}"], **terms)),
    "permit": Kind(lambda locks, **terms: locks.semaphore("permit", PERMITS, **terms), 1, PERMITS),
    "writer": Kind(lambda locks, **terms: locks.rw_lock("table", **terms).write(), CROWD, CROWD),
    "reader": Kind(lambda locks, **terms: locks.rw_lock("table", **terms).read(), 1, CROWD),
}


async def done(result: Any) -> Any:
    """What a task awaits has happened already when a thread has called it."""
    return await result if inspect.isawaitable(result) else result


def first_name(lock: Any) -> str:
    """Return a lock's name, or the first one of a lock with several."""
    names: list[str] = [lock.name] if hasattr(lock, "name") else lock.names
    return names[0]


async def sleep(seconds: float, in_task: bool) -> None:
    if in_task:
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)


class Crowd:
    """All workers of a process."""

    def __init__(self, url: str, number: int, seconds: float) -> None:
        self.context = LockContext.from_url(url)
        self.in_tasks = bool(number % 2)
        self.locks: Any = self.context.asyncio if self.in_tasks else self.context
        self.beliefs: list[Belief] = []
        self.reports: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by holder, and by name
        holder = f"{number}:exclusive:kept"  # a stop costs this lock for certain, others by chance
        kept = self.context.lock(f"kept:{number}", timeout=TIMEOUT_S, on_lost=self._tell(holder))
        kept.acquire()
        print("begun", flush=True)
        self.until = now() + seconds
        workers = [(kind, f"{number}:{kind}:{each}") for kind in KINDS for each in range(WORKERS)]
        if self.in_tasks:
            asyncio.run(self._tasks([self._work(kind, name) for kind, name in workers]))
        else:
            threads = [threading.Thread(target=self._thread, args=(self._work(kind, name),)) for kind, name in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with suppress(LockLost):
            kept.release()
        self.beliefs.append(Belief(str(kept.name), holder, 1, 1, 0.0, 0.0, bool(kept.lost), 0, 0))

    def _tell(self, holder: str) -> Callable[[LostEvent], None]:
        return lambda event: self.reports[holder].update([str(event.name)])

    async def _tasks(self, works: list[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*works)
        await asyncio.sleep(0.5)  # for the last callbacks

    def _thread(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            work.send(None)
        except StopIteration:
            return
        raise AssertionError("a thread's calls return what they have done")

    async def _work(self, kind: str, worker: str) -> None:
        turn = held = 0
        while now() < self.until or not held:  # no contender is starved
            turn += 1
            held += await self._hold(KINDS[kind], f"{worker}:{turn}")
            await sleep(random.uniform(0.001, 0.02), self.in_tasks)

    async def _hold(self, kind: Kind, holder: str) -> bool:
        lock = kind.make(self.locks, timeout=TIMEOUT_S, on_lost=self._tell(holder))
        try:
            if not await done(lock.acquire(blocking_timeout=random.choice([0.0, 0.01, 1.0, 3.0]))):
                return False
        except (LockTimeout, LockUnavailable):
            return False  # the process was stopped meanwhile, or there was next to no time
        since = until = now()
        enough = since + random.uniform(0.0, 0.005)
        while (at := now()) < enough and lock.is_held:  # the time is read before the state
            until = at
            await sleep(0.001, self.in_tasks)
        lost = False
        try:
            await done(lock.release())
        except WheelLockError as error:
            lost = isinstance(error, LockLost) or bool(lock.lost)
            if not lost:
                print(f"{holder}: {error!r}", file=sys.stderr)
        belief = Belief(
            first_name(lock), holder, kind.share, kind.room, since, until, lost, 0, getattr(lock, "fence", 0) or 0
        )
        self.beliefs.append(belief)
        return until > since


if __name__ == "__main__":
    crowd = Crowd(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    print("done", flush=True)
    sys.stdin.readline()  # what is left behind by mistake is seen by others before the context releases it
    crowd.context.close()
    reports = {holder: max(by_name.values()) for holder, by_name in crowd.reports.items()}
    print(json.dumps([belief._replace(reports=reports.get(belief.holder, 0)) for belief in crowd.beliefs]))
