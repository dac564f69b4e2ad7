"""A key of another type under a lock's name: data is an error, what expires may be another kind of lock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, Backend
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError
from wheel_lock.runtime.notifier import NOTIFIER

pytestmark = pytest.mark.servers("real")

DATA: dict[str, Callable[[redis.Redis], Any]] = {
    "string": lambda view: view.set("a", "value"),
    "hash": lambda view: view.hset("a", "field", "value"),
    "list": lambda view: view.rpush("a", "value"),
    "set": lambda view: view.sadd("a", "value"),
    "zset": lambda view: view.zadd("a", {"value": 1e15}),
    "stream": lambda view: view.xadd("a", {"field": "value"}),
}
LOCKS: dict[str, tuple[str, Callable[[LockContext], Any]]] = {
    "exclusive": ("string", lambda context: context.lock("a", timeout=2.0)),
    "polled": ("string", lambda context: context.lock("a", timeout=2.0, retry_every=0.02)),
    "fenced": ("string", lambda context: context.lock("a", timeout=2.0, fencing=True)),
    "fair": ("string", lambda context: context.fair_lock("a", timeout=2.0)),
    "reentrant": ("hash", lambda context: context.reentrant_lock("a", timeout=2.0)),
    "read": ("zset", lambda context: context.rw_lock("a", timeout=2.0).read()),
    "write": ("zset", lambda context: context.rw_lock("a", timeout=2.0).write()),
    "permit": ("zset", lambda context: context.semaphore("a", 2, timeout=2.0)),
    "together": ("string", lambda context: context.multi_lock(["0", "a", "z"], timeout=2.0)),
}


@BOTH
@pytest.mark.parametrize("lock", LOCKS)
def test_data_is_an_error_that_names_its_type(backend: Backend, context: LockContext, lock: str) -> None:
    kept, make = LOCKS[lock]
    for data in [each for each in DATA if each != kept]:
        backend.view.delete("a")
        DATA[data](backend.view)
        kind = f"a {data} that does not expire.* a {kept} "
        with pytest.raises(LockServerError, match=rf"{kind}.*\(lock 'a'\)") as caught:
            make(context).acquire(blocking_timeout=LONG_S)
        assert caught.value.code == "WRONGTYPE"
        assert backend.view.type("a") == data.encode()
        eventually(lambda: backend.view.keys("*") == [b"a"], LONG_S, "nothing is left of the waiter")


OF_USERS: dict[str, dict[str, float]] = {
    "a score board": {"alice": 10.0, "bob": 20.0},
    "a list of dates": {"alice": 1.7e15, "bob": 1.8e15},
    "times in seconds": {"alice": 1.7e9, "p:bob": 1.8e9},
    "one letter": {"t": 3.0},
    "what looks like a waiter": {"i:0123456789abcdefghijkl": 3.0},
}


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("data", OF_USERS)
@pytest.mark.parametrize("lock", ["read", "write", "permit"])
def test_a_sorted_set_of_a_users_own_stays_as_it_is(backend: Backend, lock: str, data: str, expires: bool) -> None:
    context, clock = backend.stepped_context()
    backend.view.zadd("a", OF_USERS[data])
    if expires:
        backend.view.pexpire("a", 3_600_000)
    acquiring = Background(lambda: LOCKS[lock][1](context).acquire(blocking_timeout=60.0))
    if expires:
        eventually(lambda: context.stats().waiting == 1)
        clock.advance(70.0)
    with pytest.raises(LockServerError, match="zset of other members") if not expires else nullcontext():
        assert not acquiring.result()
    context.close()  # after whatever cleans up behind it
    kept: Any = backend.view.zrange("a", 0, -1, withscores=True)
    assert kept == [(name.encode(), score) for name, score in OF_USERS[data].items()]
    assert (backend.view.pttl("a") > 3_000_000) if expires else (backend.view.pttl("a") == -1)


HASHES: dict[str, dict[Any, Any]] = {
    "a record": {"name": "Alice", "born": "1990"},
    "one field": {"name": "Alice"},
    "a field with a colon": {"cart:open": "1"},
}


@pytest.mark.parametrize("data", HASHES)
@pytest.mark.parametrize("fencing", [False, True])
def test_a_hash_of_a_users_own_is_data(backend: Backend, context: LockContext, data: str, fencing: bool) -> None:
    backend.view.hset("a", mapping=HASHES[data])
    lock = context.reentrant_lock("a", fencing=fencing)
    for waits in (True, False):
        with pytest.raises(LockServerError, match="a hash of other fields that does not expire"):
            lock.acquire(blocking=waits)
    kept: Any = backend.view.hgetall("a")
    assert kept == {field.encode(): value.encode() for field, value in HASHES[data].items()}


def test_the_one_try_of_a_plain_lock_is_refused_as_redis_py_is(backend: Backend, context: LockContext) -> None:
    DATA["list"](backend.view)
    assert not context.lock("a").acquire(blocking=False)
    assert context.acquire_many(["a"]) == {"a": None}


@pytest.mark.parametrize(("lock", "data"), [(lock, "hash" if LOCKS[lock][0] != "hash" else "list") for lock in LOCKS])
def test_expiring_data(
    backend: Backend, context: LockContext, lock: str, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept, make = LOCKS[lock]
    DATA[data](backend.view)
    backend.view.pexpire("a", 60000)
    with caplog.at_level(logging.WARNING, logger="wheel_lock"):
        waiting = Background(make(context).acquire)

        def warnings() -> list[str]:
            assert NOTIFIER.drain(LONG_S)
            return [text for text in caplog.messages if "waiting for the lock" in text]

        eventually(warnings, LONG_S)
        backend.view.pexpire("a", 100)
        assert waiting.result()
        found = warnings()
    assert len(found) == 1
    assert f"holds a {data}," in found[0]
    assert f"keeps a {kept}" in found[0]
