"""Packages that leave the renewing to their user, and the loop with which users do it."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from bench.rivals.implementation import Implementation, Lost


class OneByOne(Implementation):
    """A thread that wakes up once a second and renews what is due, one round trip after the other.

    Attributes:
        gone: What a renewal, or a release, raises if the lock has another owner, or none.
        unknown: What a renewal raises if the server did not answer: it is tried again in the next second.
    """

    most_held = 100_000  # it comes up with them, and falls behind: a loop like this renews a few thousand a second
    gone: ClassVar[type[Exception] | tuple[type[Exception], ...]]
    unknown: ClassVar[type[Exception]]

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        # All have the same interval, so the one that is renewed goes to the end: cheaper than a heap.
        self._due: deque[tuple[float, str, Any]] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._renewed = 0

    @abstractmethod
    def renew(self, lock: Any) -> None:
        """Reset the time-to-live of a lock."""

    def hold(self, names: Sequence[str], lost: Lost) -> None:
        self._lost = lost
        self._thread.start()  # now: the first ones are due before the last ones are acquired
        for name in names:
            lock = self.lock(name)
            lock.acquire()
            self._due.append((time.monotonic() + self.timeout_s / 3, name, lock))

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            while self._due and self._due[0][0] <= time.monotonic() and not self._ended.is_set():
                _, name, lock = self._due[0]
                try:
                    self.renew(lock)
                except self.gone as error:
                    self._due.popleft()
                    self._lost(name, type(error).__name__)
                except self.unknown:
                    break
                else:
                    self._due.popleft()
                    self._due.append((time.monotonic() + self.timeout_s / 3, name, lock))
                    self._renewed += 1

    def renewed(self) -> int:
        return self._renewed

    def let_go(self) -> None:
        self._ended.set()
        self._thread.join()
        for _, _, lock in self._due:
            try:
                lock.release()
            except self.gone:
                pass  # lost since its last renewal
        self._due.clear()
