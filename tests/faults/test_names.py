"""Fault 42: names and tokens that look like something else are sent as exactly their bytes, or refused."""

from __future__ import annotations

import pytest

from tests.faults.support import Losses, own_context, wait_for_renewals
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockLost
from wheel_lock.protocol.keys import fence_key

pytestmark = pytest.mark.slow


HOSTILE: dict[str, str | bytes] = {
    "crlf": "a\r\nDEL b\r\n",
    "protocol": b"*1\r\n$8\r\nFLUSHALL\r\n",
    "nul": "a\0b",
    "only nul": b"\0",
    "braces": "{",
    "closed braces": "}{",
    "empty tag": "{}x",
    "tag": "a{b}c{d}",
    "nested": "{{a}}",
    "unclosed": "{a",
    "open end": "a}",
    "not utf-8": b"\xff\xfe\x80",
    "surrogate bytes": b"\xed\xa0\x80",
    "unicode": "z\u00e4hler \U0001f512 \u202e",
    "percent": "%s %d {0} {name} \\x00",
    "glob": "*?[a]",
    "lua": "'] return redis.call('flushall') --",
    "blank": " ",
    "longest": "n" * 512,
    "longest in bytes": "\u00e4" * 256,
    "number": "0",
    "minus": "-1",
}


ALONE = ["crlf", "empty tag", "not utf-8", "percent", "longest in bytes"]
"""Those that are used one by one, too, because each has its own way to go wrong."""


@pytest.mark.parametrize("name", [HOSTILE[what] for what in ALONE], ids=ALONE)
def test_fault_42_a_hostile_name_is_sent_as_exactly_its_bytes(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, name: str | bytes
) -> None:
    """42. Names with CRLF, NUL, braces: exact bytes, in every command there is."""
    client = redis_server.client()
    key = name if isinstance(name, bytes) else name.encode()
    client.set("canary", "alive")
    losses = Losses()
    with own_context(redis_server) as context:
        for fencing, companions in ((False, set()), (True, {fence_key(key)})):
            lock = context.lock(name, timeout=3.0, renew_every=0.02, fencing=fencing, on_lost=losses)
            assert lock.acquire()
            assert set(client.keys()) == {b"canary", key, *companions}
            assert client.get(key) == lock.token
            assert lock.locked()
            assert lock.owned()
            wait_for_renewals(lock, 2)
            assert lock.extend(1.0)
            assert not context.lock(name).acquire(blocking=False)
            lock.release()
            assert client.get(key) is None

        bulk = context.acquire_many([name, b"canary"], 3.0)
        assert bulk[b"canary"] is None
        assert bulk[name] is not None
        context.release_many(bulk.values())

        # A loss, which is where names get into messages and logs.
        lock = context.lock(name, timeout=3.0, renew_every=0.02, on_lost=losses)
        lock.acquire()
        token = lock.token
        assert token is not None
        client.delete(key)
        eventually(lambda: losses)
        assert losses.names == [name]
        with pytest.raises(LockLost) as caught:
            lock.release()
        assert caught.value.lock_name == name
        texts = [str(caught.value), repr(lock), *eventually(lambda: [r.getMessage() for r in caplog.records])]
        for text in texts:
            assert text.isprintable(), text
            assert text.isascii(), text
            assert token.decode() not in text
    assert client.get("canary") == b"alive"


def test_fault_42_all_hostile_names_in_one_batch(redis_server: RedisServer) -> None:
    """42. Side by side in one script call no name can be taken for the end of another."""
    client = redis_server.client()
    losses = Losses()
    with own_context(redis_server) as context:
        found = context.acquire_many(HOSTILE.values(), 3.0, renew_every=0.05, on_lost=losses)
        locks = {name: lock for name, lock in found.items() if lock is not None}
        assert len(locks) == len(HOSTILE)
        eventually(lambda: all(lock.renewals >= 3 for lock in locks.values()))
        robbed = HOSTILE["crlf"]
        client.delete(robbed)
        eventually(lambda: losses)
        eventually(lambda: all(lock.renewals >= 6 for name, lock in locks.items() if name != robbed))
        assert losses.names == [robbed]
        for name, lock in locks.items():
            assert lock.is_held == (name != robbed)
        context.release_many(lock for lock in locks.values() if lock.is_held)
        assert client.keys() == []
