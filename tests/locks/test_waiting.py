"""Waiting, for every kind of lock: woken by the release."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.callers import Caller, NewCaller, ThreadCaller
from tests.support.lock_types import WAKING, deaf, listening, make
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
