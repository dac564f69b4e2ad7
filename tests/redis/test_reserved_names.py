"""Names in the library's own namespace, or of a wrong length, are refused at every door, before anything is sent."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.support.backend import Backend
from tests.support.lock_types import KINDS, make
from wheel_lock import InvalidHandoff, LockContext
from wheel_lock.options import RESERVED, lock_token
from wheel_lock.protocol import keys
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.redis_lock import AsyncLock
from wheel_lock.redis_lock import Lock as RedisLock

REFUSED = "a lock name must not begin with 'wheel_lock:'"


class Text(str):
    __slots__ = ()


RESERVED_NAMES: list[Any] = [
    "wheel_lock:permits:{pool}",
    "wheel_lock:fence:{order}",
    "wheel_lock:é",
    "wheel_lock:",
    b"wheel_lock:queue:{order}",
    b"wheel_lock:\xff",
    Text("wheel_lock:alive:{order}"),
]
ALLOWED: list[Any] = ["wheel_lock", "Wheel_lock:a", " wheel_lock:a", "wheel_lock;", b"wheel_loc:", "a:wheel_lock:"]


def _decorated(context: LockContext, name: Any, template: str = "{name}") -> Any:
    @context.locked(template)
    def work(name: Any) -> None:
        pytest.fail("it ran")

    return work(name)


async def _decorated_task(context: LockContext, name: Any) -> Any:
    @context.locked("{name}")
    async def work(name: Any) -> None:
        pytest.fail("it ran")

    return await work(name)


def _text(name: Any) -> str:
    return name if isinstance(name, str) else "wheel_lock:" + name.decode("latin-1")


async def _acquire_many(context: LockContext, wanted: list[Any]) -> Any:
    return await context.asyncio.acquire_many(wanted)


DOORS: dict[str, Callable[[LockContext, Any], Any]] = {
    **{kind: lambda context, name, kind=kind: make(context, kind, name) for kind in KINDS},  # type: ignore[misc]
    **{f"asyncio {kind}": lambda context, name, kind=kind: make(context.asyncio, kind, name) for kind in KINDS},  # type: ignore[misc]
    "several": lambda context, name: context.multi_lock(["a", name]),
    "leader": lambda context, name: context.leader(name),
    "asyncio leader": lambda context, name: context.asyncio.leader(name),
    "force_release": lambda context, name: context.force_release(name),
    "acquire_many": lambda context, name: context.acquire_many(["a", name]),
    "all or nothing": lambda context, name: context.acquire_many(["a", name], all_or_nothing=True),
    "asyncio acquire_many": lambda context, name: asyncio.run(_acquire_many(context, ["a", name])),
    "decorator": lambda context, name: context.locked(_text(name).replace("{", "{{").replace("}", "}}")),
    "decorator, computed": lambda context, name: _decorated(context, _text(name)),
    "decorator, computed in part": lambda context, name: _decorated(context, "lock:x", "wheel_{name}"),
    "decorator of a task": lambda context, name: asyncio.run(_decorated_task(context, _text(name))),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_name_of_the_librarys_own_is_refused(door: str) -> None:
    with LockContext(redis.Redis(port=1)) as context:
        for name in RESERVED_NAMES:
            with pytest.raises(ValueError, match=REFUSED):
                DOORS[door](context, name)
        assert context.stats().connects == 0


@pytest.mark.parametrize("door", [door for door in DOORS if not door.endswith(("multi", "in part"))])  # which add to it
def test_the_length_of_a_name_counts_the_prefix(door: str) -> None:
    with LockContext(redis.Redis(port=1), prefix="ü" * 250) as context:
        context.lock("x" * 12)
        context.multi_lock(["x" * 12])
        for length in (13, 0):
            with pytest.raises(ValueError, match=f"must have 1 to 12 bytes, not {length}"):
                DOORS[door](context, "x" * length)


async def test_redis_pys_lock_is_refused_such_a_name() -> None:
    client, tasks = redis.Redis(port=1), redis.asyncio.Redis(port=1)
    for name in [*RESERVED_NAMES, memoryview(b"wheel_lock:fence:{order}")]:
        for token in (None, b"1000"):
            with pytest.raises(ValueError, match=REFUSED):
                RedisLock(client, name, timeout=30).acquire(token=token, blocking=False)
        with pytest.raises(ValueError, match=REFUSED):
            await AsyncLock(tasks, name, timeout=30).acquire(blocking=False)
    for context in (LockContext.shared(client), LockContext.shared(tasks)):
        assert context.stats().connects == 0
        context.close()


def test_a_quorum_refuses_such_a_name() -> None:
    clients = [redis.Redis(host="127.0.0.1", port=port) for port in (1, 2, 3)]
    with LockContext.quorum(clients) as context:
        for door in (context.lock, context.reentrant_lock, context.asyncio.lock):
            with pytest.raises(ValueError, match=REFUSED):
                door(RESERVED_NAMES[0])


def test_a_handoff_of_such_a_name_is_refused(real: Backend) -> None:
    context = real.context()
    text = Handoff("order", b"1000", "exclusive", None, 30.0, 10.0, None, None, None).to_text(b"")
    prefix, _, body = text.partition(":")
    values = json.loads(base64.urlsafe_b64decode(body.partition(".")[0]))
    values["name"] = base64.urlsafe_b64encode(b"wheel_lock:permits:{pool}").decode()
    forged = base64.urlsafe_b64encode(json.dumps(values).encode()).decode()
    with pytest.raises(InvalidHandoff, match="must not begin"):
        context.adopt(f"{prefix}:{forged}.{hashlib.sha256(forged.encode()).hexdigest()[:16]}")
    assert context.stats().connects == 0


def test_what_is_neither_text_nor_bytes_is_no_name() -> None:
    wrong: Any
    for wrong in (memoryview(b"wheel_lock:a"), bytearray(b"wheel_lock:a"), memoryview(b"a"), 7):
        with pytest.raises(ValueError, match="a lock name must be str or bytes"):
            LockContext(redis.Redis(port=1)).lock(wrong)
        with pytest.raises(ValueError, match="lock name"):
            LockContext(redis.Redis(port=1)).force_release(wrong)


def test_names_that_only_look_like_it_are_allowed(real: Backend) -> None:
    for name in ALLOWED:
        with real.context().lock(name, fencing=True) as lock:
            assert lock.is_held


def test_a_token_may_begin_so() -> None:
    assert lock_token("wheel_lock:a") == b"wheel_lock:a"


def test_all_keys_and_channels_of_the_librarys_own_begin_so() -> None:
    made = [keys.fence_key(b"a"), keys.permits_key(b"a"), *keys.queue_keys(b"a"), keys.wake_channel(b"a", b"read:")]
    assert all(key.startswith(RESERVED.encode()) for key in made)
