"""How threads and tasks go about what a worker does, which is written once, as coroutines."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from wheel_lock import LockContext


class Alive(Protocol):
    """A worker."""

    async def live(self) -> None: ...


async def done(value: Any) -> Any:
    """What a task awaits has happened already when a thread has called it."""
    return await value if inspect.isawaitable(value) else value


def run_to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a thread: nothing in it waits for an event loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for something that will never come")


class Threads:
    """How threads go about it."""

    def __init__(self, context: LockContext) -> None:
        self.locks: Any = context

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def hasty_acquire(self, lock: Any, seconds: float) -> bool:
        """Give up soon."""
        return bool(lock.acquire(blocking_timeout=seconds))

    def run(self, workers: Sequence[Alive]) -> None:
        threads = [threading.Thread(target=run_to_its_end, args=(worker.live(),)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Tasks:
    """How tasks do."""

    def __init__(self, context: LockContext) -> None:
        self.locks: Any = context.asyncio
        self._runner = asyncio.Runner()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def hasty_acquire(self, lock: Any, seconds: float) -> bool:
        """Be cancelled soon."""
        try:
            async with asyncio.timeout(seconds):
                return bool(await lock.acquire())
        except TimeoutError:
            return False

    def run(self, workers: Sequence[Alive]) -> None:
        async def run() -> None:
            await asyncio.gather(*(worker.live() for worker in workers))
            await asyncio.sleep(0.3)  # for the last callbacks

        self._runner.run(run())  # the loop stays open: what it left behind should not end with it
