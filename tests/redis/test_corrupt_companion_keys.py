"""Nonsense in a key that accompanies a lock: an error to the call that reads it, and to nobody else; nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import redis

from tests.support.backend import LONG_S, Backend
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError
from wheel_lock.protocol.keys import fence_key, permits_key, queue_keys

NAME = "order"
FENCE, PERMITS = fence_key(NAME.encode()), permits_key(NAME.encode())
QUEUE, ALIVE = queue_keys(NAME.encode())
SOON = 4e12  # by the server's clock in ms: in a century
LOCKS: dict[str, Callable[[LockContext], Any]] = {
    "fenced": lambda context: context.lock(NAME, timeout=3.0, renew_every=0.05, fencing=True),
    "fenced reentrant": lambda context: context.reentrant_lock(NAME, timeout=3.0, renew_every=0.05, fencing=True),
    "fenced write": lambda context: context.rw_lock(NAME, timeout=3.0, renew_every=0.05, fencing=True).write(),
    "fenced fair": lambda context: context.fair_lock(NAME, timeout=3.0, renew_every=0.05, fencing=True),
    "fair": lambda context: context.fair_lock(NAME, timeout=3.0, renew_every=0.05),
    "read": lambda context: context.rw_lock(NAME, timeout=3.0, renew_every=0.05).read(),
    "write": lambda context: context.rw_lock(NAME, timeout=3.0, renew_every=0.05).write(),
    "permit": lambda context: context.semaphore(NAME, 2, timeout=3.0, renew_every=0.05),
}
FENCED = [kind for kind in LOCKS if kind.startswith("fenced")]
NO_NUMBERS: list[str | bytes] = [
    *("nan", "-nan", "inf", "-inf", "infinity", "0x10", "1e3", " 5", "5 ", "+5", "-1", "1.5", "5,0", "", "five"),
    *(b"\xff", "5\n", "5\x00", "\u0665", "9007199254740993", "-9223372036854775808", "9" * 400, "0" * 17),
]
OTHER_TYPES: dict[str, Callable[[redis.Redis, bytes], Any]] = {
    "list": lambda view, key: view.rpush(key, "5"),
    "hash": lambda view, key: view.hset(key, "5", "5"),
    "set": lambda view, key: view.sadd(key, "5"),
}
WAITER = "w" * 22
QUEUES: dict[str, Callable[[redis.Redis], Any]] = {
    **{
        f"somebody is alive until {score}": lambda view, score=score: (  # type: ignore[misc]
            view.zadd(QUEUE, {WAITER: 1}),
            view.zadd(ALIVE, {WAITER: score}),
        )
        for score in ("inf", "-inf", "1e300", "-5", "1.5", "9007199254740993")
    },
    **{
        f"the last ticket is {score}": lambda view, score=score: (  # type: ignore[misc]
            view.zadd(QUEUE, {WAITER: score}),
            view.zadd(ALIVE, {WAITER: SOON}),
        )
        for score in ("inf", "1e300", "-5", "1.5", "9007199254740992")
    },
    **{f"the queue is a {kind}": lambda view, make=make: make(view, QUEUE) for kind, make in OTHER_TYPES.items()},  # type: ignore[misc]
    **{f"who is alive is a {kind}": lambda view, make=make: make(view, ALIVE) for kind, make in OTHER_TYPES.items()},  # type: ignore[misc]
}
SETS = {
    **{f"a reader until {score}": {"r:" + "r" * 44: score} for score in (float("inf"), 1e300, 2.0**53)},
    **{f"a permit until {score}": {"p:" + "p" * 22: score} for score in (float("inf"), 1e300, 2.0**53)},
    **{f"a writer until {score}": {"w:" + "w" * 44: -score} for score in (float("inf"), 1e300, 2.0**53)},
    **{f"a waiter until {score}": {"i:" + "i" * 22: -score} for score in (float("inf"), 1e300, 2.0**53)},
    "a turn for ever": {"t": float("-inf")},
    "one of them among others": {"r:" + "r" * 44: float("inf"), "r:" + "s" * 44: SOON, "w:" + "w" * 44: -SOON},
}


def everything(view: redis.Redis) -> dict[Any, Any]:
    """What is on the server, but the lock that is held beside."""
    keys: Any = view.keys("*")
    return {key: (view.dump(key), view.pttl(key) == -1) for key in keys if key != b"beside"}


def assert_told(
    real: Backend, kind: str, says: str, call: Callable[[Any], object], prepare: Iterable[Callable[[], object]]
) -> None:
    """Whatever is prepared, the call is told, by an error reply that costs nothing else."""
    context = real.context()
    with context.lock("beside", timeout=3.0, renew_every=0.05) as beside:
        connects = context.stats().connects
        for step in prepare:
            step()
            before = everything(real.view)
            with pytest.raises(LockServerError, match=rf"{says}.*\(lock 'order'\)"):
                call(LOCKS[kind](context))
            assert everything(real.view) == before
        renewals = beside.renewals
        eventually(lambda: beside.renewals > renewals, LONG_S)
        assert context.stats().connects == connects


def waits(lock: Any) -> object:
    return lock.acquire(blocking_timeout=LONG_S)


def tries(lock: Any) -> object:
    return lock.acquire(blocking=False)


@pytest.mark.parametrize("kind", FENCED)
def test_a_fence_key_that_holds_no_fence(real: Backend, kind: str) -> None:
    values = [*NO_NUMBERS, "9007199254740991"]
    prepare = [partial(real.view.set, FENCE, value) for value in values]
    assert_told(real, kind, "the fence key of this lock", tries, prepare)


@pytest.mark.parametrize("call", [tries, waits, lambda lock: lock.locked()], ids=["tried", "waited for", "looked at"])
def test_a_permits_key_that_holds_no_number(real: Backend, call: Callable[[Any], object]) -> None:
    prepare = [partial(real.view.set, PERMITS, value) for value in NO_NUMBERS]
    assert_told(real, "permit", "the permits key of this semaphore", call, prepare)


@pytest.mark.parametrize("other", OTHER_TYPES)
@pytest.mark.parametrize("kind", [*FENCED, "permit"])
@pytest.mark.parametrize("call", [tries, waits])
def test_a_companion_key_of_another_type(real: Backend, kind: str, other: str, call: Callable[[Any], object]) -> None:
    prepare = [partial(OTHER_TYPES[other], real.view, PERMITS if kind == "permit" else FENCE)]
    assert_told(real, kind, "the (permits|fence) key of this", call, prepare)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("kind", ["fair", "fenced fair"])
def test_a_queue_of_something_else(real: Backend, kind: str, queue: str) -> None:
    assert_told(real, kind, "the queue of this fair lock", waits, [partial(QUEUES[queue], real.view)])


@pytest.mark.parametrize("kind", ["read", "write", "fenced write", "permit"])
@pytest.mark.parametrize("call", [tries, waits])
def test_a_holder_whose_time_is_none(real: Backend, kind: str, call: Callable[[Any], object]) -> None:
    prepare = [lambda each=each: (real.view.delete(NAME), real.view.zadd(NAME, each)) for each in SETS.values()]
    assert_told(real, kind, "a zset of other members that does not expire", call, prepare)


@pytest.mark.parametrize("kind", [*FENCED, "fair", "permit"])
@pytest.mark.parametrize("broken", ["text", *OTHER_TYPES])
def test_what_is_held_is_kept_whatever_its_companion_keys_hold(real: Backend, kind: str, broken: str) -> None:
    context = real.context()
    lock = LOCKS[kind](context)
    assert lock.acquire()
    for key in (FENCE, PERMITS, QUEUE, ALIVE):
        real.view.delete(key)
        if broken == "text":
            real.view.set(key, "nan")
        else:
            OTHER_TYPES[broken](real.view, key)
    renewals = lock.renewals
    eventually(lambda: lock.renewals > renewals + 1, LONG_S)
    assert lock.extend(1.0)
    lock.release()
    assert not real.view.exists(NAME)
    assert context.stats().connects == 1


@pytest.mark.parametrize("kind", ["read", "write", "permit"])
def test_a_holder_is_kept_beside_one_whose_time_is_none(real: Backend, kind: str) -> None:
    context = real.context()
    lock = LOCKS[kind](context)
    assert lock.acquire()
    real.view.zadd(NAME, {"r:" + "r" * 44: float("inf"), "w:" + "w" * 44: float("-inf")})
    real.view.persist(NAME)
    renewals = lock.renewals
    eventually(lambda: lock.renewals > renewals + 1, LONG_S)
    assert real.view.pttl(NAME) > 0
    lock.release()
    assert real.view.zcard(NAME) == 2


@pytest.mark.parametrize("kind", ["fenced", "fenced reentrant", "fair", "read", "permit"])
def test_an_expiry_that_is_too_far_away_is_an_error_to_the_extension(real: Backend, kind: str) -> None:
    context = real.context()
    lock = LOCKS[kind](context)
    assert lock.acquire()
    far = 1 << 50
    if kind in ("read", "permit"):
        real.view.zadd(NAME, {lock.token: far}, xx=True)
    real.view.pexpire(NAME, far)
    with pytest.raises(ValueError, match=r"must be at most 1e\+09 seconds together"):
        lock.extend(1.0)
    assert lock.is_held
    assert lock.extend(3.0, replace_ttl=True)
    lock.release()
    assert context.stats().connects == 1
