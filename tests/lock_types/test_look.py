"""What is read under a lock's name at a server: every kind of lock, foreign contents, and a user without rights.

Who was seen there can be released by force: the expected holders only, of every kind, and with a wake-up.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.support.backend import Backend
from tests.support.lock_types import KINDS, NAME, make
from wheel_lock import LockContext
from wheel_lock.lock_types import holders
from wheel_lock.lock_types.holders import (
    MAX_HOLDERS,
    LockState,
    force_release_arguments,
    look_arguments,
    parse_force_release,
    parse_look,
)
from wheel_lock.options import process_owner
from wheel_lock.protocol.keys import fence_key, permits_key, queue_keys, redisson_channel, wake_channel
from wheel_lock.protocol.owners import owner_head, token_id
from wheel_lock.protocol.resp import MalformedReply
from wheel_lock.protocol.scripts import FORCE_RELEASE, LOOK

TIMEOUT_S = 30.0


def look(client: redis.Redis, name: str = NAME, *, companions: bool = True) -> LockState:
    keys, others = look_arguments(name.encode(), companions=companions)
    return parse_look(client.eval(LOOK.plain.source.decode(), len(keys), *keys, *others))


EXPECTED = {
    "exclusive": ("exclusive", "exclusive"),
    "reentrant": ("reentrant", "exclusive"),
    "read": ("read-write", "read"),
    "write": ("read-write", "write"),
    "fair": ("fair", "exclusive"),
    "semaphore": ("semaphore", "permit"),
    "multi": ("exclusive", "exclusive"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_of_each_kind_has_its_kind_its_holder_and_its_time(
    backend: Backend, context: LockContext, kind: str
) -> None:
    assert look(backend.view).kind == "free"
    with make(context, kind, timeout=TIMEOUT_S) as lock:
        state = look(backend.view)
        token = lock.locks[NAME].token if kind == "multi" else lock.token
    [holder] = state.holders
    assert (state.kind, holder.mode) == EXPECTED[kind]
    assert state.is_held
    assert holder.token_id == token_id(token)
    assert state.values == (token,)
    assert holder.owner == process_owner()
    assert holder.count == 1
    assert holder.remaining_s is not None
    assert 0 < holder.remaining_s <= TIMEOUT_S
    assert state.remaining_s is not None
    assert state.problem is None
    assert token.decode() not in repr(state)
    assert look(backend.view) == LockState("free", "none", listeners=state.listeners)


@pytest.mark.servers("real")
def test_waiters_and_listeners_are_counted(backend: Backend, context: LockContext, other: LockContext) -> None:
    for kind in ("fair", "write"):
        with make(context, kind, timeout=TIMEOUT_S):
            assert not make(other, kind).acquire(blocking=False)
            [queue, alive] = queue_keys(NAME.encode())
            now_s, _ = backend.view.time()
            if kind == "fair":
                backend.view.zadd(queue, {"a" * 22: 1, "b" * 22: 2})
                backend.view.zadd(alive, {"a" * 22: (int(now_s) + 60) * 1000, "b" * 22: 1})
                expected = 1  # the other has not been heard of for too long
            else:
                backend.view.zadd(NAME, {b"i:" + b"a" * 22: -(int(now_s) + 60) * 1000})
                backend.view.zadd(NAME, {b"q:" + b"a" * 22: -(int(now_s) + 60) * 1000})
                expected = 2
            assert look(backend.view).waiters == expected
            assert len(look(backend.view).holders) == 1
        backend.view.delete(NAME, queue, alive)
    with backend.view.pubsub() as listener:
        before = look(backend.view).listeners
        listener.subscribe(f"wheel_lock:wake:{{{NAME}}}")
        listener.get_message(timeout=60.0)
        assert (before, look(backend.view).listeners) == (0, 1)


def test_fence_and_permits(backend: Backend, context: LockContext) -> None:
    with context.lock(NAME, timeout=TIMEOUT_S, fencing=True) as lock:
        assert look(backend.view).fence == lock.fence
    assert look(backend.view).fence == lock.fence, "the fence stays after a release"
    semaphore = context.semaphore(NAME, 3, timeout=TIMEOUT_S)
    semaphore.set_permits(7)
    with semaphore:
        assert look(backend.view).permits == 7


def test_an_owner_at_the_head_of_a_token_is_read(backend: Backend) -> None:
    head = owner_head("billing 1@host:7")
    backend.view.set(NAME, head + b"x" * 22, px=60_000)
    state = look(backend.view)
    assert (state.kind, state.holders[0].owner) == ("exclusive", "billing 1@host:7")
    backend.view.set(NAME, head + b"x" * 44, px=60_000)
    assert look(backend.view).kind == "fair"
    backend.view.delete(NAME)
    backend.view.hset(NAME, mapping={head + b"x" * 22 + b":140": "1"})
    state = look(backend.view)
    assert (state.kind, state.holders[0].owner) == ("reentrant", "billing 1@host:7")
    assert state.remaining_s is None


def test_locks_of_redisson(backend: Backend) -> None:
    client = "6fd2dd9f-1f4c-4b6b-8f6e-8d6d3e6f7a10"
    backend.view.hset(NAME, mapping={f"{client}:71": "3"})
    state = look(backend.view)
    assert (state.kind, state.holders[0].count, state.holders[0].mode) == ("redisson", 3, "exclusive")
    backend.view.hset(NAME, mapping={"mode": "read", f"{client}:72": "1"})
    state = look(backend.view)
    assert (state.kind, [holder.mode for holder in state.holders]) == ("redisson read-write", ["read", "read"])
    backend.view.delete(NAME)
    backend.view.hset(NAME, mapping={"mode": "write", f"{client}:72:write": "1"})
    assert [holder.mode for holder in look(backend.view).holders] == ["write"]


def test_of_many_holders_those_that_expire_first_are_listed(backend: Backend, context: LockContext) -> None:
    with context.semaphore(NAME, 1000, timeout=TIMEOUT_S):
        now_s, _ = backend.view.time()
        backend.view.zadd(NAME, {f"p:{n:022}": (int(now_s) + 1000 + n) * 1000 for n in range(200)})
        state = look(backend.view)
    assert state.kind == "semaphore"
    assert (len(state.holders), state.left_out) == (MAX_HOLDERS, 201 - MAX_HOLDERS)
    remaining = [holder.remaining_s or 0.0 for holder in state.holders]
    assert remaining == sorted(remaining)
    assert remaining[0] <= TIMEOUT_S


def test_a_writer_is_found_among_any_number_of_waiters(
    backend: Backend, context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, _ = backend.view.time()
    marks = {f"i:{n:022}": -(int(now_s) + 1000) * 1000 for n in range(2500)}
    with context.rw_lock(NAME, timeout=TIMEOUT_S, renew=False).write() as lock:
        backend.view.zadd(NAME, marks)
        state = look(backend.view)
        assert state.values == (lock.token,)
        assert (state.kind, state.is_held, state.waiters) == ("read-write", True, 2500)
        monkeypatch.setattr(holders, "_MOST_MARKS", 2000)
        state = look(backend.view)
        assert (state.kind, state.is_held) == ("unreadable", False), "a lock that may be held is not free"
        assert "more than 2000 waiters" in str(state.problem)


def _strange(client: redis.Redis) -> dict[str, Any]:
    """Return what writes each strange content."""
    huge = "v" * 100_000
    return {
        "text": lambda: client.set(NAME, "hello"),
        "bytes": lambda: client.set(NAME, b"\xff\x00\x1b[2J"),
        "long text": lambda: client.set(NAME, huge),
        "empty text": lambda: client.set(NAME, ""),
        "list": lambda: client.rpush(NAME, "a"),
        "set": lambda: client.sadd(NAME, "a"),
        "stream": lambda: client.xadd(NAME, {"a": "b"}),
        "hash": lambda: client.hset(NAME, mapping={"name": "Ada", b"\xff": huge}),
        "hash of numbers": lambda: client.hset(NAME, mapping={f"user:{n}": huge for n in range(3)}),
        "large hash": lambda: client.hset(NAME, mapping={f"uuid:{n}": "1" for n in range(500)}),
        "hash of a mode": lambda: client.hset(NAME, mapping={"mode": "dark"}),
        "long field": lambda: client.hset(NAME, mapping={"f" * 5000: "1"}),
        "scores": lambda: client.zadd(NAME, {"Ada": 1.5, "Bob": -3.0}),
        "infinite": lambda: client.zadd(NAME, {"r:" + "x" * 22: "inf", "w:" + "x" * 22: "-inf"}),
        "long member": lambda: client.zadd(NAME, {"r:" + huge: 2**52}),
        "between": lambda: client.zadd(NAME, {"p:" + "x" * 22: 2**45, "z": 2**46, "p:" + "y" * 22: 2**47}),
    }


@pytest.mark.parametrize("what", list(_strange(redis.Redis())))
def test_strange_contents_are_foreign_and_raise_nothing(backend: Backend, what: str) -> None:
    _strange(backend.view)[what]()
    state = look(backend.view)
    assert state.kind == "foreign", state
    assert not state.is_held
    assert state.problem is None


def test_companion_keys_with_strange_contents_are_left_out(backend: Backend) -> None:
    name = NAME.encode()
    backend.view.set(NAME, "x" * 22, px=60_000)
    for key in (fence_key(name), permits_key(name), *queue_keys(name)):
        backend.view.rpush(key, "a")
    state = look(backend.view)
    assert (state.kind, state.fence, state.permits, state.waiters, state.problem) == ("exclusive",) + (None,) * 4
    for text in ("nan", "-1", "1e3", "9" * 30, "9" * 5000, str(2**53)):
        backend.view.delete(fence_key(name))
        backend.view.set(fence_key(name), text)
        assert look(backend.view).fence is None


@pytest.mark.servers("real")
def test_a_user_without_the_right_to_read_gets_unreadable_and_never_free(backend: Backend) -> None:
    backend.view.set(NAME, "x" * 22, px=60_000)
    commands = ["+eval", "+time", "+pttl"]
    backend.view.acl_setuser("looker", enabled=True, nopass=True, reset=True, keys=["*"], commands=commands)
    looker = redis.Redis(port=backend.port, username="looker", password="any")
    try:
        state = look(looker)
        assert (state.kind, state.is_held) == ("unreadable", False)
        assert state.problem is not None
        backend.view.acl_setuser("looker", commands=["+type"])
        assert look(looker).kind == "unreadable"
        assert look(looker, "absent").kind == "free"
        backend.view.acl_setuser("looker", commands=["-type", "+exists", "+get"])
        state = look(looker)
        assert (state.kind, state.listeners) == ("exclusive", None)
        with context_of_keys(backend, looker) as error:
            look(looker)
        assert "ermission" in str(error.value)
        assert look(looker, companions=False).kind == "exclusive"
    finally:
        looker.close()
        backend.view.acl_deluser("looker")


def context_of_keys(backend: Backend, looker: redis.Redis) -> Any:
    """Leave the user the lock's own key only, and expect the refusal of the next call."""
    backend.view.acl_setuser("looker", reset_keys=True, keys=[NAME])
    return pytest.raises(redis.exceptions.NoPermissionError)


@pytest.mark.parametrize(
    "reply",
    [
        *(None, [], [b"string"], [b"string", 1, [b"x"], *[0] * 8], [1, 1, [], 0, 0, -1, None, None, -1, None, []]),
        [b"s", 1, [1, 1, 1], 1, 0, -1, None, None, -1, None, []],
    ],
)
def test_a_reply_of_another_shape_is_malformed(reply: object) -> None:
    with pytest.raises(MalformedReply):
        parse_look(reply)


# Releases by force

CHANNELS = {
    "exclusive": wake_channel(NAME.encode()),
    "multi": wake_channel(NAME.encode()),
    "fair": wake_channel(NAME.encode()),
    "reentrant": redisson_channel(NAME.encode()),
    "read": wake_channel(NAME.encode(), b"write:"),
    "write": wake_channel(NAME.encode(), b"read:"),
    "semaphore": wake_channel(NAME.encode(), b"permit:"),
}


def force(client: redis.Redis, seen: LockState) -> int | None:
    keys, others = force_release_arguments(NAME.encode(), seen.key_type, seen.values)
    return parse_force_release(client.eval(FORCE_RELEASE.plain.source.decode(), len(keys), *keys, *others))


@pytest.mark.parametrize("kind", KINDS)
def test_the_holders_that_were_seen_are_released_with_a_wake_up(
    backend: Backend, context: LockContext, kind: str
) -> None:
    assert make(context, kind, renew=False).acquire()
    seen = look(backend.view)
    with backend.view.pubsub() as listener:
        listener.subscribe(CHANNELS[kind])
        assert listener.get_message(timeout=5.0) is not None
        assert force(backend.view, seen) == 1
        message = listener.get_message(timeout=5.0)
        assert message is not None
        assert message["data"] == b"0"
    assert not backend.view.exists(NAME)
    assert force(backend.view, seen) == 0


@pytest.mark.servers("real")
@pytest.mark.parametrize("kind", KINDS)
def test_a_holder_that_came_in_between_keeps_its_lock(
    backend: Backend, context: LockContext, other: LockContext, kind: str
) -> None:
    lock = make(context, kind, renew=False)
    assert lock.acquire()
    seen = look(backend.view)
    lock.release()
    with make(other, kind) as present:
        assert force(backend.view, seen) is None
        assert present.owned() if kind != "multi" else present.locks[NAME].owned()


def test_data_of_another_application_is_not_touched(backend: Backend) -> None:
    backend.view.hset(NAME, mapping={"a": "1", "b": "2"})
    seen = LockState("reentrant", "hash", values=(b"a:1",))
    assert force(backend.view, seen) is None
    for other_type in ("string", "zset"):
        assert force(backend.view, LockState("exclusive", other_type, values=(b"a",))) is None
    assert backend.view.hlen(NAME) == 2
    backend.view.delete(NAME)
    backend.view.zadd(NAME, {"r:score": 12})
    assert force(backend.view, LockState("read-write", "zset", values=(b"r:score",))) is None
    assert backend.view.zcard(NAME) == 1


def test_what_is_no_lock_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="without holders"):
        force_release_arguments(b"a", "string", [])
    with pytest.raises(ValueError, match="'list'"):
        force_release_arguments(b"a", "list", [b"x"])
    for reply in (-2, b"1", None, [1]):
        with pytest.raises(MalformedReply):
            parse_force_release(reply)
