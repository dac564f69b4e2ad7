"""One of several processes that contend for a few locks, and write down what they believed and when.

It is forked by a nursery. All locks are fenced, and a lease goes by its fence. What it
writes is read by test_stress.py.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import LockError

from tests.faults.checker import Belief, Loss, Stop, Write
from tests.faults.holder import to_monotonic
from tests.faults.support import Pulse
from wheel_lock import HashedWheelTimer, Lock, LockContext, LockLost, LostEvent

# What the locks protect: takes no smaller fence than it has seen, and numbers what it takes.
REGISTER = """
if tonumber(ARGV[1]) < tonumber(redis.call('get', KEYS[1]) or '0') then return 0 end
redis.call('set', KEYS[1], ARGV[1])
return redis.call('incr', KEYS[2])
"""

now = time.monotonic


class Contender:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.names: list[str] = settings["names"]
        self.timeout_s: float = settings["timeout"]
        self.until = now() + settings["duration"]
        self.register = redis.Redis.from_url(settings["register_url"])
        self.context = LockContext.from_url(settings["url"], timer=HashedWheelTimer())
        self.beliefs: list[Belief] = []
        self.losses: list[Loss] = []
        self.writes: list[Write] = []
        self.pulse = Pulse()

    def told(self, event: LostEvent) -> None:
        deadline = event.deadline + to_monotonic()
        self.losses.append(Loss(str(event.name), str(event.fence), os.getpid(), deadline, now()))

    def contend(self) -> None:
        """Acquire one of the locks, hold it for a while, release it; again and again."""
        while now() < self.until:
            lock = self.context.lock(
                random.choice(self.names),
                timeout=self.timeout_s,
                fencing=True,
                renew=random.random() < 0.8,
                retry_every=random.choice([0.01, None]),  # some ask again and again, some wait to be woken
                on_lost=self.told,
            )
            try:
                granted = lock.acquire(blocking_timeout=self.timeout_s)
            except LockError:
                continue  # no grant: nothing may be believed
            if granted:
                self.hold(lock, now())

    def hold(self, lock: Lock, since: float) -> None:
        enough = since + self.timeout_s * random.choice([0.0, 0.1, 0.3, 1.0, 2.0])
        until = since
        while (at := now()) < enough and lock.is_held:
            until = at
            if random.random() < 0.2:
                self.write(lock)
            time.sleep(random.uniform(0.001, 0.005))
        try:
            lock.release()
            self.note(lock, since, until, "released")
        except LockLost:
            self.note(lock, since, until, "lost")
        except LockError:
            self.note(lock, since, until, "running")
        for _ in range(3):  # whatever came of it, it is over for good
            at = now()
            if lock.is_held:
                self.note(lock, at, now(), "running")
            time.sleep(0.001)

    def note(self, lock: Lock, since: float, until: float, ending: Any) -> None:
        self.beliefs.append(Belief(str(lock.name), str(lock.fence), os.getpid(), since, until, lock.fence, ending))

    def write(self, lock: Lock) -> None:
        fence = lock.fence
        assert fence is not None
        name = str(lock.name)
        number = self.register.eval(REGISTER, 2, f"register:{name}", f"count:{name}", str(fence))
        if number:
            self.writes.append(Write(name, int(str(number)), fence))

    def stops(self) -> list[Stop]:
        """When it was stopped, by whom ever."""
        shift, stalls = to_monotonic(), self.pulse.seen
        return [Stop(os.getpid(), since + shift, until + shift) for since, until in stalls if until - since > 0.1]

    def run(self, threads: int) -> None:
        workers = [threading.Thread(target=self.contend) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.context.close()


def main(text: str) -> None:
    settings = json.loads(text)
    contender = Contender(settings)
    with contender.pulse:
        contender.run(settings["threads"])
        time.sleep(0.3)  # for the last callbacks
        stops = contender.stops()
    history = {"beliefs": contender.beliefs, "losses": contender.losses, "writes": contender.writes, "stops": stops}
    Path(settings["path"]).write_text(json.dumps(history))
