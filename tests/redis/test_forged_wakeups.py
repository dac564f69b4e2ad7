"""Wake-ups from strangers: they steer nothing, and a thousand of them cost the server a handful of scripts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import LockContext

NAME = "order:42"
FORGED = 600
TICK_S = 0.01
MOST_AT_ONCE = 16  # with one change of what is known of the holder in between

KINDS: dict[str, Callable[[LockContext], Any]] = {
    "exclusive": lambda context: context.lock(NAME, 60.0, thread_local=False),
    "fenced": lambda context: context.lock(NAME, 60.0, fencing=True, thread_local=False),
    "reentrant": lambda context: context.reentrant_lock(NAME, 60.0),
    "fair": lambda context: context.fair_lock(NAME, 60.0),
    "semaphore": lambda context: context.semaphore(NAME, permits=1, timeout=60.0),
    "read": lambda context: context.rw_lock(NAME, 60.0).read(),
    "write": lambda context: context.rw_lock(NAME, 60.0).write(),
    "multi": lambda context: context.multi_lock([NAME, "order:43"], 60.0),
}


def scripts(backend: Backend) -> int:
    """How many scripts the server has run."""
    counts = backend.view.info("commandstats")
    return sum(int(counts.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


def waiters_of_the_queue(backend: Backend) -> list[bytes]:
    key = f"wheel_lock:queue:{{{NAME}}}"
    names: Any = backend.view.zrange(key, 0, -1)
    return list(names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_forged_wake_ups_cost_a_handful_of_scripts(real: Backend, kind: str) -> None:
    holder = real.context()
    held = KINDS["write" if kind == "read" else kind](holder)
    assert held.acquire()
    context = real.context()

    def wait() -> bool:
        lock = KINDS[kind](context)
        got = bool(lock.acquire())
        if got:
            lock.release()
        return got

    waiting = [Background(wait) for _ in range(3)]
    eventually(lambda: context.stats().waiting == 3, LONG_S)
    eventually(lambda: not context._engine.busy, LONG_S)
    channels = eventually(lambda: real.view.pubsub_channels("*"), LONG_S, "they listen")
    payloads = [b"0", b"x" * 1000, *waiters_of_the_queue(real)]
    before, began = scripts(real), time.monotonic()
    for number in range(FORGED):  # one by one, so that there is time to follow each of them
        for channel in channels:
            real.view.publish(channel, payloads[number % len(payloads)])
    eventually(lambda: scripts(real) > before, LONG_S, "they are heard")
    eventually(lambda: not context._engine.busy, LONG_S)
    assert not any(one.done for one in waiting), "nobody is granted what another holds"
    ran, ticks = scripts(real) - before, (time.monotonic() - began) / TICK_S
    assert ran <= len(waiting) * (MOST_AT_ONCE + ticks + 4)  # one try of a waiter for each tick, and a few at once
    held.release()
    assert all(one.result() for one in waiting)
