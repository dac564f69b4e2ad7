"""Names and tokens that look like something else are sent as exactly their bytes, or refused."""

from __future__ import annotations

import pytest

from tests.faults.support import Losses, own_context
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockLost

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


def test_all_hostile_names_in_one_batch(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Side by side in one script call no name can be taken for the end of another."""
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
        with pytest.raises(LockLost) as caught:
            locks[robbed].release()
        texts = [str(caught.value), *map(repr, locks.values()), *(record.getMessage() for record in caplog.records)]
        assert [text for text in texts if not (text.isprintable() and text.isascii())] == []
        for name, lock in locks.items():
            assert lock.is_held == (name != robbed)
        context.release_many(lock for lock in locks.values() if lock.is_held)
        assert client.keys() == []
