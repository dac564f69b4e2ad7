"""The worker of an implementation in Python: ``python -m bench.rivals.worker IMPLEMENTATION MODE URL OPTIONS``.

Its modes and their options, a JSON object, are those of every worker, in whatever language:

hold        locks, timeout_s, prefix, first: holds PREFIX + NUMBER. ``read`` answers renewed, lost, heap; ``release``
            releases all.
pairs       callers, kind ("threads" or "tasks"), timeout_s, warm_s, spin: the callers acquire and release free locks.
            ``SECONDS`` answers pairs, seconds.
handover    name, timeout_s, hold_s: two workers take turns. ``N`` answers moments, N pairs of grant and release.
crowd       name, waiters, kind, hold_s, timeout_s: all of them want one lock. ``SECONDS`` answers grants, seconds.
churn       locks, prefix, callers, hold_s, timeout_s: it holds locks, and so many threads acquire free ones, keep them for
            hold_s, and release them. ``SECONDS`` answers pairs, seconds, lost.

With "cluster": true in the options the server is a node of a cluster. "renewal_slack" and
"release_on_crash" are settings of wheel_lock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

from bench.rivals import IMPLEMENTATIONS
from bench.rivals.implementation import Implementation
from bench.workers import Loss, serve

NAMES = 64  # of each caller: a new lock object each time, but no endless number of keys
LOOK_S = 0.002


def hold(rival: Implementation, options: Mapping[str, Any]) -> None:
    first, prefix, told = options.get("first", 0), options["prefix"], list[Loss]()
    names = [f"{prefix}{number}" for number in range(first, first + options["locks"])]
    written = 0

    def note(name: str, reason: str) -> None:
        told.append(Loss(int(name.removeprefix(prefix)), time.monotonic(), reason))

    def new_losses() -> list[Loss]:
        nonlocal written
        new = told[written:]
        written += len(new)
        return new

    def answer(line: str) -> dict[str, Any]:
        if line == "go release":
            rival.let_go()
            return {}
        return {"renewed": rival.renewed(), "lost": len(told), "heap": None}

    rival.hold(names, note)
    serve(answer, new_losses)


def names_of(caller: int) -> Iterator[str]:
    return itertools.cycle([f"p:{caller}:{number}" for number in range(NAMES)])


def on_threads(rival: Implementation, callers: int, seconds: float, hold_s: float = 0.0) -> int:
    """Return how many pairs so many threads have made in so many seconds, keeping each lock for ``hold_s``."""
    counts, until = [0] * callers, time.monotonic() + seconds

    def work(caller: int) -> None:
        for name in names_of(caller):
            if time.monotonic() >= until:
                break
            lock = rival.lock(name)
            lock.acquire()
            if hold_s:
                time.sleep(hold_s)
            lock.release()
            counts[caller] += 1

    run_threads(work, callers)
    return sum(counts)


def run_threads(work: Callable[[int], None], callers: int) -> None:
    if callers == 1:
        work(0)
        return
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(work, range(callers)))  # raises what a caller raises


async def on_tasks(rival: Implementation, callers: int, seconds: float) -> int:
    counts, until = [0] * callers, time.monotonic() + seconds

    async def work(caller: int) -> None:
        for name in names_of(caller):
            if time.monotonic() >= until:
                break
            lock = rival.async_lock(name)
            await lock.acquire()
            await lock.release()
            counts[caller] += 1

    await asyncio.gather(*map(work, range(callers)))
    return sum(counts)


def spin() -> None:
    number = 0
    while True:
        number += 1


def pairs(rival: Implementation, options: Mapping[str, Any]) -> None:
    callers = options["callers"]
    with asyncio.Runner() as runner:

        def work(seconds: float) -> int:
            if options["kind"] == "tasks":
                return runner.run(on_tasks(rival, callers, seconds))
            return on_threads(rival, callers, seconds)

        def answer(line: str) -> dict[str, Any]:
            began = time.monotonic()
            made = work(float(line.removeprefix("go ")))
            return {"pairs": made, "seconds": time.monotonic() - began}

        work(options["warm_s"])
        for _ in range(options.get("spin", 0)):
            threading.Thread(target=spin, daemon=True).start()
        serve(answer)


def handover(rival: Implementation, options: Mapping[str, Any]) -> None:
    lock, client = rival.lock(options["name"]), redis.Redis.from_url(rival.url)
    turns = f"{options['name']}:turns"

    def answer(line: str) -> dict[str, Any]:
        times, moments = int(line.removeprefix("go ")), []
        for number in range(times):
            lock.acquire()
            granted_at = time.monotonic()
            turn = client.incr(turns)
            time.sleep(options["hold_s"])
            moments.append((granted_at, time.monotonic()))
            lock.release()
            # The other one's turn: a releaser that asked again at once would hand over to itself.
            while number < times - 1 and int(client.get(turns) or 0) == turn:
                time.sleep(LOOK_S)
        return {"moments": moments}

    serve(answer)


def crowd(rival: Implementation, options: Mapping[str, Any]) -> None:
    waiters = options["waiters"]

    def answer(line: str) -> dict[str, Any]:
        seconds = float(line.removeprefix("go "))
        grants, until = [0] * waiters, time.monotonic() + seconds

        def work(waiter: int) -> None:
            lock = rival.lock(options["name"])
            while time.monotonic() < until:
                lock.acquire()
                if time.monotonic() < until:
                    grants[waiter] += 1
                    time.sleep(options["hold_s"])
                lock.release()

        run_threads(work, waiters)
        return {"grants": grants, "seconds": seconds}  # those that come too late are not counted

    serve(answer)


def churn(rival: Implementation, options: Mapping[str, Any]) -> None:
    told: list[str] = []

    def answer(line: str) -> dict[str, Any]:
        began = time.monotonic()
        made = on_threads(rival, options["callers"], float(line.removeprefix("go ")), options["hold_s"])
        return {"pairs": made, "seconds": time.monotonic() - began, "lost": len(told)}

    names = [f"{options['prefix']}{number}" for number in range(options["locks"])]
    rival.hold(names, lambda name, reason: told.append(name))
    serve(answer)


MODES = {"hold": hold, "pairs": pairs, "handover": handover, "crowd": crowd, "churn": churn}


def main() -> None:
    name, mode, url, text = sys.argv[1:5]
    options = json.loads(text)
    kind: Callable[..., Implementation] = IMPLEMENTATIONS[name]()
    settings = {
        name: options[name]
        for name in ("cluster", "renewal_slack", "release_on_crash")
        if options.get(name) is not None
    }
    rival = kind(url, options["timeout_s"], **settings)
    try:
        MODES[mode](rival, options)
    except NotImplementedError as error:
        print("failed", error, flush=True)
    finally:
        rival.close()


if __name__ == "__main__":
    main()
