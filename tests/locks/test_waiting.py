"""Waiting, for every kind of lock: woken by the release."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.callers import Caller, NewCaller, ThreadCaller
from tests.support.lock_types import KINDS, NAME, WAKING, deaf, listening, make, zmembers
from tests.support.waiting import eventually
from wheel_lock import LockContext

pytestmark = pytest.mark.servers("real")

waking = pytest.mark.parametrize(
    ("holder", "waiter"), [("exclusive", "exclusive"), *WAKING], ids=lambda kind: str(kind)
)


def waits(caller: Caller, kind: str, **terms: Any) -> Any:
    """A lock whose acquire waits for long unless a limit is passed."""
    return make(caller.locks, kind, **{"blocking_timeout": LONG_S, **terms})


@waking
@pytest.mark.parametrize("way", ["release", "release in the same context", "close"])
def test_the_end_of_a_hold_wakes_the_waiter(
    backend: Backend, new_caller: NewCaller, holder: str, waiter: str, way: str
) -> None:
    waiting, _ = deaf(backend)
    context = waiting if way == "release in the same context" else backend.context()
    lock, held = waits(new_caller(waiting), waiter), make(context, holder)
    held.acquire()
    acquiring = lock.acquire.begin()
    if context is not waiting:
        eventually(lambda: listening(backend) >= 1)
    assert not acquiring.done()
    context.close() if way == "close" else held.release()
    assert acquiring.result(LONG_S)
    assert lock.is_held
    lock.release()
    assert waiting.stats().held == 0


@pytest.mark.parametrize("crowded", [False, True], ids=["one holds it", "one holds it and one waits"])
def test_two_reentrant_locks_whose_waiters_are_woken_on_one_channel_are_still_two(
    context: LockContext, crowded: bool
) -> None:
    """Redisson's channel for `x` is the one for `{x}`, too: that may cost a poll, but no lock."""

    def new(name: str) -> Any:
        return ThreadCaller(context).locks.reentrant_lock(name, blocking_timeout=LONG_S)

    plain, plain_behind, tagged, tagged_behind = new("x"), new("x"), new("{x}"), new("{x}")
    plain.acquire()
    if crowded:
        waiting = plain_behind.acquire.begin()
    assert tagged.acquire(blocking_timeout=LONG_S / 2), "it is free"
    assert not tagged_behind.acquire(blocking=False)
    second = tagged_behind.acquire.begin()
    assert tagged.release()
    assert second.result(LONG_S)
    plain.release()
    if crowded:
        assert waiting.result(LONG_S)
        plain_behind.release()


# Wake-ups of strangers


FORGED = 200
TICK_S = 0.01
MOST_AT_ONCE = 16  # attempts of a waiter, with one change of the holder in between


def scripts(backend: Backend) -> int:
    """How many scripts the server has run."""
    counts: Any = backend.view.info("commandstats")
    return sum(int(counts.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "read"])
def test_hundreds_of_forged_wake_ups_cost_a_handful_of_scripts(
    backend: Backend, context: LockContext, other: LockContext, kind: str
) -> None:
    held = make(other, kind)
    held.acquire()
    locks = [waits(ThreadCaller(context), kind) for _ in range(3)]
    waiting = [lock.acquire.begin() for lock in locks]
    eventually(lambda: listening(backend) and not context._engine.busy, LONG_S, "they listen")
    payloads = [b"0", b"x" * 1000, *zmembers(backend, f"wheel_lock:queue:{{{NAME}}}")]
    before, began = scripts(backend), time.monotonic()
    channels = backend.view.pubsub_channels("*")
    for number in range(FORGED):  # one by one, so that there is time to follow each of them
        for channel in channels:
            backend.view.publish(channel, payloads[number % len(payloads)])
    eventually(lambda: scripts(backend) > before and not context._engine.busy, LONG_S, "they are heard")
    assert not any(one.done() for one in waiting), "no caller is granted what another holds"
    ran, ticks = scripts(backend) - before, (time.monotonic() - began) / TICK_S
    assert ran <= len(waiting) * (MOST_AT_ONCE + ticks + 4)  # one attempt of a waiter for each tick, and a few at once
    held.release()
    while locks:
        [turn] = eventually(lambda: [number for number, one in enumerate(waiting) if one.done()][:1], LONG_S)
        assert waiting.pop(turn).result()
        locks.pop(turn).release()
