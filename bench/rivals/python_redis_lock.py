"""python-redis-lock: ``auto_renewal=True`` starts a thread for each lock that is acquired."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import redis
import redis_lock  # type: ignore[import-untyped]

from bench.rivals.implementation import Implementation, Lock, Lost
from bench.rivals.redis_py_each import MOST_CONNECTIONS, MOST_THREADS


class RenewedLock(redis_lock.Lock):  # type: ignore[misc]
    """A lock that is renewed every third of its timeout, set as the package documents it (the default is two thirds).

    The package tells nobody of a loss: whatever extend() raises, an unanswered call included, ends the thread of the lock
    and is printed by ``threading.excepthook``. A user who wants to hear of it overrides that method, as here.
    """

    def __init__(self, client: redis.Redis, name: str, timeout_s: float, lost: Lost) -> None:
        super().__init__(client, name, expire=int(timeout_s), auto_renewal=True)  # it takes whole seconds
        self._lock_renewal_interval = timeout_s / 3
        self._told = partial(lost, name)
        self.renewed = 0

    def extend(self, expire: int | None = None) -> None:
        try:
            super().extend(expire)
        except Exception as error:
            self._told(f"the thread ended: {type(error).__name__}")
            raise SystemExit from None  # ends a thread as any other exception does, without the printing
        self.renewed += 1


class PythonRedisLock(Implementation):
    """A thread for each lock, from the package."""

    name = "python-redis-lock"
    most_held = MOST_THREADS

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        # A renewal that finds all connections taken raises an error, and ends the lock's thread: with the default of 100,
        # locks are lost as soon as more than 100 are renewed at the same time.
        self._client = redis.Redis.from_url(url, max_connections=MOST_CONNECTIONS)
        self._held: list[RenewedLock] = []

    def lock(self, name: str) -> Lock:
        return RenewedLock(self._client, name, self.timeout_s, lambda name, reason: None)

    def hold(self, names: Sequence[str], lost: Lost) -> None:
        for name in names:
            lock = RenewedLock(self._client, name, self.timeout_s, lost)
            lock.acquire()
            self._held.append(lock)

    def renewed(self) -> int:
        return sum(lock.renewed for lock in self._held)

    def let_go(self) -> None:
        for lock in self._held:
            try:
                lock.release()
            except redis_lock.NotAcquired:
                pass  # lost before
        self._held.clear()

    def close(self) -> None:
        self._client.close()
