"""The script that releases a lock for its holders: only the expected ones, of every kind, and with a wake-up."""

from __future__ import annotations

import pytest
import redis

from tests.support.backend import Backend
from tests.support.lock_types import KINDS, NAME, make
from wheel_lock import LockContext
from wheel_lock.lock_types.forced import force_release_arguments, parse_force_release
from wheel_lock.lock_types.holders import LockState, look_arguments, parse_look
from wheel_lock.protocol.keys import redisson_channel, wake_channel
from wheel_lock.protocol.resp import MalformedReply
from wheel_lock.protocol.scripts import FORCE_RELEASE, LOOK

CHANNELS = {
    "exclusive": wake_channel(NAME.encode()),
    "multi": wake_channel(NAME.encode()),
    "fair": wake_channel(NAME.encode()),
    "reentrant": redisson_channel(NAME.encode()),
    "read": wake_channel(NAME.encode(), b"write:"),
    "write": wake_channel(NAME.encode(), b"read:"),
    "semaphore": wake_channel(NAME.encode(), b"permit:"),
}


def look(client: redis.Redis) -> LockState:
    keys, others = look_arguments(NAME.encode())
    return parse_look(client.eval(LOOK.plain.source.decode(), len(keys), *keys, *others))


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
