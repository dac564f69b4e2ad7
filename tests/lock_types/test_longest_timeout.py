"""The longest time that a lock of any kind may have left: more is refused, and costs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.callers import Caller, ThreadCaller
from tests.support.lock_types import KINDS, NAME, make
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.options import MAX_SECONDS, MAX_TTL_MS

pytestmark = pytest.mark.servers("real")

extended = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "multi"])

TOO_LONG = r"additional_time and what is left must be at most 1e\+09 seconds together, not "
KNOWN_HERE_S = 0.02 * MAX_SECONDS  # exceeds the margin between a timeout and the local deadline
KNOWN_THERE_S = 0.005 * MAX_SECONDS
ABSURD_MS = [MAX_TTL_MS + 1_000_000, 1 << 53, 1 << 62]


@extended
def test_an_extension_beyond_the_longest_timeout_is_refused_and_nothing_is_lost(
    backend: Backend, context: LockContext, me: Caller, kind: str
) -> None:
    lock = make(me.locks, kind, timeout=MAX_SECONDS)
    with context.lock("bystander") as bystander:
        assert lock.acquire()
        connects, sent = context.stats().connects, scripts_called(backend)
        with pytest.raises(ValueError, match=TOO_LONG + "20000000 s and .* s that are left"):
            lock.extend(KNOWN_HERE_S)
        assert scripts_called(backend) == sent, "what is known here is not sent"
        for _ in range(3):
            with pytest.raises(ValueError, match=TOO_LONG + "5000000 s and what the server says"):
                lock.extend(KNOWN_THERE_S)
        assert 0.98 * MAX_TTL_MS < pttl(backend) <= MAX_TTL_MS
        assert lock.is_held
        assert lock.remaining() <= 0.99 * MAX_SECONDS
        assert lock.extend(MAX_SECONDS, replace_ttl=True)
        assert lock.reacquire()
        assert lock.extend(60.0, replace_ttl=True)
        assert lock.extend(KNOWN_HERE_S)
        assert lock.is_held
        assert lock.remaining() > 0.98 * KNOWN_HERE_S
        assert bystander.is_held
        assert context.stats().connects == connects
        assert context.stats().lost == 0
        lock.release()


def pttl(backend: Backend) -> int:
    left: Any = backend.view.pttl(NAME)
    return int(left)


def scripts_called(backend: Backend) -> int:
    """How many scripts the server has been asked to run."""
    stats: Any = backend.view.info("commandstats")
    return sum(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in ("eval", "evalsha"))


@pytest.mark.parametrize(
    ("kind", "ttl_ms"),
    [*(("exclusive", ttl_ms) for ttl_ms in ABSURD_MS), ("reentrant", 1 << 62), ("fair", 1 << 62), ("write", 1 << 62)],
)
def test_a_key_with_an_absurd_expiry_is_kept_extended_by_nothing_and_waited_for(
    real: Backend, kind: str, ttl_ms: int
) -> None:
    context, waits = real.context(), real.context()
    lock = make(context, kind, timeout=3.0, renew_every=0.03)
    lock.acquire()
    assert make(waits, kind).acquire(blocking=False) is False
    connects = context.stats().connects, waits.stats().connects
    if kind == "write":
        scores: Any = real.view.zrange(NAME, 0, 0, withscores=True)
        [(member, score)] = scores
        real.view.zadd(NAME, {member: score - ttl_ms})
    assert real.view.pexpire(NAME, ttl_ms)
    waiting = make(ThreadCaller(waits).locks, kind).acquire.begin(blocking_timeout=LONG_S)
    with pytest.raises(ValueError, match=TOO_LONG):
        lock.extend(1.0)
    seen = lock.renewals
    eventually(lambda: lock.renewals > seen + 1)
    assert lock.is_held
    assert pttl(real) > ttl_ms - 600_000, "a renewal never shortens it"
    assert not waiting.done()
    assert (context.stats().connects, waits.stats().connects) == connects
    lock.release()
    assert waiting.result()
