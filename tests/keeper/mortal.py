"""A process that contends for locks until it is killed, for a fork server: ``main(url, keeper, form, history, name)``.

Each worker appends what it believes to the file `history`, a line when it has a lock and a line before it lets go. So what
a process that was killed believed is known, too; `name` is its name there. "begun" is printed with the number of that which
has the workers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any

from tests.crowds.crowd import KINDS, done, first_name, sleep
from tests.keeper.holder import ready
from wheel_lock import LockContext

FORMS = (*("threads", "tasks", "fork") * 5, "exec")  # the last one takes as long to start as many others
TIMEOUT_S = 600.0  # no kill is made good by it
WORKERS = 2  # workers of each kind in a process
LONGEST_HOLD_S = 0.03


class Mortal:
    def __init__(self, url: str, keeper: str, in_tasks: bool, history: str, name: str) -> None:
        self._history = os.open(history, os.O_WRONLY | os.O_APPEND)
        self._context = LockContext.from_url(url, release_on_crash=keeper, timeout=TIMEOUT_S)
        self._in_tasks = in_tasks
        self._locks: Any = self._context.asyncio if in_tasks else self._context
        self._own = self._context.lock(f"own:{name}")  # held to the end
        assert self._own.acquire()
        ready(self._context)
        print(f"begun {os.getpid()}", flush=True)
        works = [self._work(kind, f"{name}:{kind}:{each}") for kind in KINDS for each in range(WORKERS)]
        if in_tasks:
            asyncio.run(self._tasks(works))
        for work in works:
            threading.Thread(target=self._thread, args=[work], daemon=True).start()
        while True:
            signal.pause()

    def _write(self, *fields: object) -> None:
        os.write(self._history, (json.dumps(fields) + "\n").encode())

    async def _tasks(self, works: list[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*works)

    def _thread(self, work: Coroutine[Any, Any, None]) -> None:
        work.send(None)  # it never ends, and a thread's calls return what they have done

    async def _work(self, kind: str, worker: str) -> None:
        for turn in itertools.count():
            share, room = KINDS[kind].share, KINDS[kind].room
            lock = KINDS[kind].make(self._locks)
            await done(lock.acquire())
            name = first_name(lock)
            holder = f"{worker}:{turn}"
            self._write(holder, time.monotonic(), name, share, room)
            await sleep(random.uniform(0.0, LONGEST_HOLD_S), self._in_tasks)
            self._write(holder, time.monotonic())
            await done(lock.release())


def use_up_memory(number: int, frame: object) -> None:
    """Take more than the control group allows. Where the limit does not hold, the machine keeps its memory."""
    taken = [b"x" * (1 << 24) for _ in range(64)]
    os._exit(len(taken))


def main(url: str, keeper: str, form: str, history: str, name: str) -> None:
    signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(0))
    signal.signal(signal.SIGUSR2, use_up_memory)
    if form == "exec":
        arguments = [url, keeper, "threads", history, name]
        sys.exit(subprocess.run([sys.executable, "-m", "tests.keeper.mortal", *arguments]).returncode)
    if form == "fork" and (child := os.fork()):
        os.waitpid(child, 0)
        return
    Mortal(url, keeper, form == "tasks", history, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
