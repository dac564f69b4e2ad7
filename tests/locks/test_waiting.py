"""Waiting, for every kind of lock: woken by the release."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import LONG_S
from tests.support.callers import Caller, ThreadCaller
from tests.support.lock_types import make
from wheel_lock import LockContext

pytestmark = pytest.mark.servers("real")


def waits(caller: Caller, kind: str, **terms: Any) -> Any:
    """A lock whose acquire waits for long unless a limit is passed."""
    return make(caller.locks, kind, **{"blocking_timeout": LONG_S, **terms})


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
