"""redis-py's own Lock, renewed one by one: by a loop, or by a thread for each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import LockNotOwnedError

from bench.rivals.implementation import Implementation, Lock, Lost
from bench.rivals.one_by_one import OneByOne

MOST_CONNECTIONS = 10_000
"""What a server allows by default. redis-py 8 allows a client 100, and raises an error for the 101st: where more threads or
tasks send at the same time, as in the benchmarks, each needs its own."""

MOST_THREADS = 2_000
"""The most locks with a thread each. 10,000 threads that fall due together wait for the interpreter's lock and for a core
longer than their locks last, and keep everything else on a machine with few cores from running."""


class _RedisPy(Implementation):
    """What both share: the client, and its Lock.

    ``thread_local=False`` lets another thread than the one that has acquired a lock renew it, as redis-py documents.
    """

    modes = ("hold",)  # its lock objects are redis-py's
    cluster = True

    def __init__(self, url: str, timeout_s: float, cluster: bool = False) -> None:
        super().__init__(url, timeout_s)
        connect = redis.RedisCluster.from_url if cluster else redis.Redis.from_url
        self.client: Any = connect(url, max_connections=MOST_CONNECTIONS)

    def lock(self, name: str) -> Lock:
        lock: Lock = self.client.lock(name, timeout=self.timeout_s, thread_local=False)
        return lock

    def close(self) -> None:
        self.client.close()


class ReacquireLoop(_RedisPy, OneByOne):
    """What is found in many places: a thread that calls ``reacquire()`` of each lock that is due."""

    name = "redis-py, loop"
    gone = LockNotOwnedError
    unknown = redis.RedisError

    def renew(self, lock: Any) -> None:
        lock.reacquire()


class ThreadEach(_RedisPy):
    """A thread for each lock, which sleeps for a third of the timeout and calls ``reacquire()``."""

    name = "redis-py, thread each"
    most_held = MOST_THREADS

    def __init__(self, url: str, timeout_s: float, cluster: bool = False) -> None:
        super().__init__(url, timeout_s, cluster)
        self._kept: list[Kept] = []

    def hold(self, names: Sequence[str], lost: Lost) -> None:
        for name in names:
            lock: Any = self.lock(name)
            lock.acquire()
            self._kept.append(Kept(lock, self.timeout_s / 3, lost))

    def renewed(self) -> int:
        return sum(kept.renewed for kept in self._kept)

    def let_go(self) -> None:
        for kept in self._kept:
            kept.release()
        self._kept.clear()


class Kept:
    """A held lock and its thread."""

    def __init__(self, lock: Any, interval_s: float, lost: Lost) -> None:
        self.renewed = 0
        self._lock = lock
        self._lost = lost
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self._lock.reacquire()
                self.renewed += 1
            except LockNotOwnedError as error:
                self._lost(self._lock.name, type(error).__name__)
                return
            except redis.RedisError:
                pass  # the server did not answer; two thirds of the timeout are left for other tries

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        try:
            self._lock.release()
        except LockNotOwnedError:
            pass  # lost before
