"""A worker that acquires and releases free locks, in turns with redis-py's Lock in the same process.

    python -m bench.targets.pairs main|worker|threads|spinning|tasks PORT SECONDS

The sides take turns of a fraction of a second. Each pair makes a lock object for a name of its own, acquires, and releases.
The answer has, for both sides, pairs per second and CPU time of the process per pair, as medians over the turns.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
import redis.asyncio

from bench.workers import serve
from wheel_lock import LockContext

TIMEOUT_S = 30.0
THREADS, TASKS, SPINNERS = 64, 500, 3
PAIRS = {"main": 250, "worker": 250, "threads": 16, "spinning": 3, "tasks": 2}
"""Pairs of each thread or task in a turn."""

Make = Callable[[str], Any]
"""Returns a lock object for a name."""


def pairs(make: Make, prefix: str, number: int) -> None:
    for pair in range(number):
        lock = make(f"{prefix}:{pair}")
        assert lock.acquire()
        lock.release()


async def pairs_of_task(make: Make, prefix: str, number: int) -> None:
    for pair in range(number):
        lock = make(f"{prefix}:{pair}")
        assert await lock.acquire()
        await lock.release()


async def on_tasks(make: Make, tasks: int, number: int) -> None:
    await asyncio.gather(*[pairs_of_task(make, f"pair:{task}", number) for task in range(tasks)])


def on_threads(make: Make, threads: int, number: int) -> None:
    crew = [threading.Thread(target=pairs, args=(make, f"pair:{thread}", number)) for thread in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()


def spin() -> None:
    number = 0
    while True:
        number += 1


def measure(work: dict[str, Callable[[], object]], count: int, seconds: float) -> dict[str, dict[str, float]]:
    """Have the sides work in turns, ``count`` pairs each time, and return the medians of what a pair took."""
    us: dict[str, list[float]] = {side: [] for side in work}
    cpu_us: dict[str, list[float]] = {side: [] for side in work}
    until = time.monotonic() + seconds
    while time.monotonic() < until or not us["rival"]:
        for side, do_pairs in work.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            do_pairs()
            us[side].append((time.perf_counter() - began) * 1e6 / count)
            cpu_us[side].append((time.process_time() - cpu_began) * 1e6 / count)
    return {
        side: {"pairs/s": 1e6 / statistics.median(us[side]), "cpu us": statistics.median(cpu_us[side])} for side in work
    }


def main(mode: str, port: int, seconds: float) -> None:
    context, number = LockContext(redis.Redis(port=port)), PAIRS[mode]
    makes: dict[str, Make]
    work: dict[str, Callable[[], object]]
    if mode == "tasks":
        runner, together = asyncio.Runner(), TASKS
        # A connection for each task, as by default: a pool that blocks is slower.
        async_client = redis.asyncio.Redis(port=port, max_connections=2 * TASKS)
        makes = {
            "ours": lambda name: context.asyncio.lock(name, timeout=TIMEOUT_S),
            "rival": lambda name: async_client.lock(name, timeout=TIMEOUT_S),
        }
        work = {side: lambda make=make: runner.run(on_tasks(make, TASKS, number)) for side, make in makes.items()}  # type: ignore[misc]
    else:
        client, together = redis.Redis(port=port), THREADS if mode == "threads" else 1
        makes = {
            "ours": lambda name: context.lock(name, timeout=TIMEOUT_S),
            "rival": lambda name: client.lock(name, timeout=TIMEOUT_S),
        }
        if mode in ("main", "spinning"):
            work = {side: partial(pairs, make, "pair:main", number) for side, make in makes.items()}
        else:
            work = {side: partial(on_threads, make, together, number) for side, make in makes.items()}
    for do_pairs in work.values():
        do_pairs()  # connects
    if mode == "spinning":
        for make in makes.values():  # as many as in the other modes before they are measured
            pairs(make, "pair:main", PAIRS["main"])
        for _ in range(SPINNERS):
            threading.Thread(target=spin, daemon=True).start()
    serve(lambda _: measure(work, number * together, seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
