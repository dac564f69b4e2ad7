"""What the tests of scripts share: a server on which each is called as it is, and what it is called with."""

from __future__ import annotations

from typing import Any

import redis

from tests.support.backend import Backend
from tests.support.lock_types import NAME, zmembers
from tests.support.redis_server import redis_server_version
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol import scripts
from wheel_lock.protocol.scripts import Script

READ_1, READ_2 = b"r:" + b"1" * 22, b"r:" + b"2" * 22
PERMIT_1, PERMIT_2, PERMIT_3 = (b"p:" + digit * 22 for digit in (b"1", b"2", b"3"))
WAITER_1, WAITER_2 = b"A" * 22, b"B" * 22
WAITING_1 = b"q:" + b"1" * 22
WRITE_1, WRITE_2 = b"w:" + WAITER_1 + b"1" * 22, b"w:" + WAITER_2 + b"2" * 22
LATER_WRITE_1 = b"w:" + WAITER_1 + b"9" * 22
INTENT_2 = b"i:" + WAITER_2
SHARED, ALONE = b"to readers", b"to writers"
FENCE, PERMITS, QUEUE, ALIVE, CHANNEL = "fence", "permits", "queue", "alive", b"to waiters"
TTL = 10_000
DAY = 86_400_000


class Server:
    """A server on which scripts are called in the form that it knows.

    Args:
        backend: The server.
        flagged: In which form scripts are called; by default in the best that it knows.
        client: Who calls them; the onlooker unless another client is named.
    """

    def __init__(self, backend: Backend, flagged: bool | None = None, client: redis.Redis | None = None) -> None:
        self.backend = backend
        self.view = backend.view
        self._client = client or backend.view
        self._flagged = backend.is_real and redis_server_version() >= (7,) if flagged is None else flagged

    def call(self, script: Script, keys: list[str], *arguments: str | bytes | int) -> Any:
        source = script.form(self._flagged).source.decode()
        reply: Any = self._client.eval(source, len(keys), *keys, *arguments)
        return reply

    @property
    def now(self) -> int:
        """Milliseconds by its clock."""
        seconds, microseconds = self.view.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def read(self, member: bytes = READ_1, ttl: int = TTL, wait_ttl: int = 0) -> Any:
        return self.call(scripts.ACQUIRE_READ, [NAME], member, ttl, wait_ttl)

    def write(self, member: bytes = WRITE_1, ttl: int = TTL, wait_ttl: int = 0, *, fenced: bool = False) -> Any:
        return self.call(scripts.ACQUIRE_WRITE, [NAME, FENCE] if fenced else [NAME], member, ttl, wait_ttl, DAY)

    def permit(self, member: bytes = PERMIT_1, ttl: int = TTL, permits: int = 2) -> Any:
        return self.call(scripts.ACQUIRE_PERMIT, [NAME, PERMITS], member, ttl, permits)

    def release(self, *members: bytes, name: str = NAME) -> Any:
        arguments = [part for member in members for part in (name, member, SHARED, ALONE)]
        return self.call(scripts.RELEASE_HOLDERS, [], *arguments)

    def renew(self, *entries: tuple[str, bytes], ttl: int = TTL) -> Any:
        return self.call(scripts.RENEW_HOLDERS, [], ttl, *[part for entry in entries for part in entry])

    def extend(self, member: bytes, time_ms: int, *, replace: bool = False) -> Any:
        return self.call(scripts.EXTEND_HOLDER, [NAME], member, time_ms, int(replace), MAX_TTL_MS)

    def swap(self, old: bytes, new: bytes, ttl: int = TTL) -> Any:
        return self.call(scripts.SWAP_HOLDER, [NAME], old, new, ttl, SHARED)

    def look(self, member: bytes = b"") -> Any:
        return self.call(scripts.LOOK_HOLDERS, [NAME, PERMITS], member)

    def fair(self, token: bytes, ttl: int = TTL, wait_ttl: int = 0, *, fenced: bool = False) -> Any:
        keys = [NAME, QUEUE, ALIVE, FENCE] if fenced else [NAME, QUEUE, ALIVE]
        return self.call(scripts.ACQUIRE_FAIR, keys, token, ttl, wait_ttl, CHANNEL, DAY)

    def leave(self, *tokens: bytes) -> Any:
        arguments = [part for token in tokens for part in (NAME, token, QUEUE, ALIVE, CHANNEL)]
        return self.call(scripts.RELEASE_FAIR, [], *arguments)

    def force(self, kind: str, *holders: bytes) -> Any:
        keys = [NAME, QUEUE, ALIVE] if kind == "string" else [NAME]
        return self.call(scripts.FORCE_RELEASE, keys, kind, SHARED, ALONE, *holders)

    def members(self) -> set[bytes]:
        return set(zmembers(self.backend))

    def left_ms(self, member: bytes) -> float:
        score = self.view.zscore(NAME, member)
        assert score is not None
        return abs(float(score)) - self.now

    def prolong(self, member: bytes, ttl: int) -> None:
        """Have a member last for ttl ms from now on, however short a time the script has given it."""
        score = self.view.zscore(NAME, member)
        assert score is not None
        self.view.zadd(NAME, {member: (1 if score > 0 else -1) * (self.now + ttl)})

    def expire(self, *members: bytes) -> None:
        """Have the time of members come, while the key goes on."""
        for member in members:
            score = self.view.zscore(NAME, member)
            assert score is not None
            self.view.zadd(NAME, {member: self.now - 1 if score > 0 else -(self.now - 1)})
