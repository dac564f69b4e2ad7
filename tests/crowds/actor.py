"""A process whose hands acquire locks of any kind as they are told, so that a test can stop and kill it in the middle.

It is forked by a nursery. It reads orders, a line of JSON each, from one pipe and reports on another.
A hand is a thread, for that is whom the locks belong to; what it is told it does one after the other, and reports each. All
times are CLOCK_MONOTONIC, one clock for all processes of a host. The test's side is in actors.py.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from typing import Any

from redis.exceptions import LockError

from tests.faults.holder import Pipe
from tests.support.standstill import Standstills
from wheel_lock import HashedWheelTimer, LockContext

now = time.monotonic
MANY = 10  # standstills: more than there are while an order is carried out


class Hand:
    """One thread that holds a lock, or waits for it, or does without."""

    def __init__(self, actor: Program, name: str) -> None:
        self._actor = actor
        self._name = name
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._locks: dict[str, Any] = {}
        threading.Thread(target=self._obey, daemon=True).start()

    def order(self, order: dict[str, Any]) -> None:
        self._orders.put(order)

    def _obey(self) -> None:
        while True:
            order = self._orders.get()
            do, result, error, before = order.pop("do"), None, "", now()
            try:
                result = getattr(self, f"_{do}")(**order)
            except LockError as failure:
                error = type(failure).__name__
            after, stood = now(), self._actor.standstills.seen[-MANY:]
            self._actor.pipe.report(
                event=do, hand=self._name, before=before, after=after, result=result, error=error, stood=stood
            )

    def _make(self, kind: str, name: str, timeout: float, permits: int | None = None) -> Any:
        context = self._actor.context
        match kind:
            case "read":
                return context.rw_lock(name, timeout).read()
            case "write":
                return context.rw_lock(name, timeout, fencing=True).write()
            case "fair":
                return context.fair_lock(name, timeout, fencing=True)
            case "permit":
                assert permits is not None
                return context.semaphore(name, permits, timeout)
        raise AssertionError(f"there is no kind {kind!r}")

    def _acquire(self, name: str, wait: float | None = None, **what: Any) -> bool:
        lock = self._locks[name] = self._make(name=name, **what)
        return bool(lock.acquire(blocking_timeout=wait))

    def _release(self, name: str) -> bool:
        """Whether it was held until then."""
        lock = self._locks[name]
        held = bool(lock.is_held)
        lock.release()
        return held

    def _pass(self, name: str, **what: Any) -> int | None:
        """Wait for it, let it go at once, and return its fence."""
        lock = self._make(name=name, **what)
        with lock:
            fence: int | None = lock.fence
        return fence

    def _churn(self, name: str, hold: float, **what: Any) -> None:
        """Acquire it, hold it for a moment, release it, and begin anew, for ever."""
        lock = self._make(name=name, **what)
        while True:
            with lock:
                time.sleep(hold)


class Program:
    def __init__(self, settings: dict[str, Any], pipe: Pipe) -> None:
        self.context = LockContext.from_url(settings["url"], timer=HashedWheelTimer(), **settings["context"])
        self.pipe = pipe
        self.standstills = Standstills().start()
        self._hands: dict[str, Hand] = {}

    def serve(self) -> None:
        self.pipe.report(event="ready", pid=os.getpid())
        for order in self.pipe.orders():
            name = order.pop("hand")
            if name not in self._hands:
                self._hands[name] = Hand(self, name)
            self._hands[name].order(order)


def main(settings: str, incoming: int, outgoing: int) -> None:
    Program(json.loads(settings), Pipe(incoming, outgoing)).serve()
    os._exit(0)  # hands may wait, or go on for ever; what they hold expires
