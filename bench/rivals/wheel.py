"""wheel_lock itself."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import redis

from bench.rivals.implementation import AsyncLock, Implementation, Lock, Lost
from wheel_lock import LockContext, LocksLost, LostEvent

ACQUIRED_AT_ONCE = 10_000

COLLECTED = 1_000_000
"""Locks above which the garbage collector is told to leave what is held alone, as a program that holds millions of objects
does: it would walk all of them again and again while others are acquired."""


class WheelLock(Implementation):
    """A LockContext; many locks by acquire_many, in pieces so that the renewals of earlier ones go on."""

    name = "wheel_lock"
    most_held = 5_000_000
    cluster = True

    def __init__(self, url: str, timeout_s: float, cluster: bool = False, **settings: Any) -> None:
        super().__init__(url, timeout_s)
        client: Any = redis.RedisCluster.from_url(url) if cluster else redis.Redis.from_url(url)
        self._context = LockContext(client, release_on_close=False, response_timeout=60.0, **settings)
        self._held: list[dict[str, Any]] = []

    def lock(self, name: str) -> Lock:
        return self._context.lock(name, timeout=self.timeout_s)

    def async_lock(self, name: str) -> AsyncLock:
        return self._context.asyncio.lock(name, timeout=self.timeout_s)

    def renew(self, lock: Any) -> None:
        assert lock.reacquire()

    def is_mine(self, lock: Any) -> bool:
        held: bool = lock.is_held
        return held

    def hold(self, names: Sequence[str], lost: Lost) -> None:
        for first in range(0, len(names), ACQUIRED_AT_ONCE):
            piece = names[first : first + ACQUIRED_AT_ONCE]
            held = self._context.acquire_many(piece, timeout=self.timeout_s, on_lost=partial(_tell, lost))
            assert all(held.values())
            self._held.append(held)
            if len(names) > COLLECTED:
                gc.freeze()

    def renewed(self) -> int:
        return self._context.stats().renewed

    def let_go(self) -> None:
        for held in self._held:
            try:
                self._context.release_many(held.values())
            except LocksLost:
                pass  # told before; the others have been released
        self._held.clear()

    def close(self) -> None:
        self._context.close()


class FairWheelLock(WheelLock):
    """First come, first served."""

    name = "wheel_lock, fair"
    modes = ("crowd",)

    def lock(self, name: str) -> Lock:
        return self._context.fair_lock(name, timeout=self.timeout_s)


def _tell(lost: Lost, event: LostEvent) -> None:
    lost(str(event.name), event.reason.name)
