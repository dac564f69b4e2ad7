"""The threads of the keeper: they do what may block, are few, and cost nothing for what is to be done later."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections.abc import Callable

MOST_THREADS = 64

Work = Callable[[], object]


_SAYS = threading.Lock()


def say(text: str) -> None:
    """Write a line on stderr, unless that is full: the keeper does not wait for a reader."""
    poll = select.poll()
    try:
        with _SAYS:
            poll.register(2, select.POLLOUT)
            if poll.poll(0):
                os.write(2, f"wheel-lock keeper: {text}\n".encode("utf-8", "backslashreplace")[: select.PIPE_BUF])
    except OSError:
        pass


class Crew:
    """Does what it is given when its time has come. One thread waits for that, and others work."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._works: list[tuple[float, int, Work]] = []  # a heap
        self._numbers = itertools.count()
        self._threads = 0
        self._waits = False  # one of the threads, for the time of the first work

    def do(self, work: Work, pause_s: float = 0.0) -> None:
        """Have ``work()`` called on a thread, in ``pause_s`` seconds or when one is free. From any thread."""
        with self._changed:
            heapq.heappush(self._works, (time.monotonic() + pause_s, next(self._numbers), work))
            if self._waits:
                self._changed.notify()
            else:
                self._add_thread()

    @property
    def stuck(self) -> bool:
        """True if there is work, and the system had no thread for it: :meth:`go_on` tries again."""
        return bool(self._works) and not self._threads

    def go_on(self) -> None:
        """Start a thread, if there is work and none."""
        with self._changed:
            if self.stuck:
                self._add_thread()

    def _add_thread(self) -> None:
        if self._threads < MOST_THREADS:
            try:
                threading.Thread(target=self._run, daemon=True).start()
                self._threads += 1
            except RuntimeError:
                pass  # the system has none left; see `stuck`

    def _run(self) -> None:
        with self._changed:
            while self._works and not self._waits:
                pause_s = self._works[0][0] - time.monotonic()
                if pause_s > 0:
                    self._waits = True
                    self._changed.wait(pause_s)
                    self._waits = False
                else:
                    self._do(heapq.heappop(self._works)[2])
            self._threads -= 1

    def _do(self, work: Work) -> None:
        if self._works and not self._waits:
            self._add_thread()  # for the next one
        self._changed.release()
        try:
            work()
        except Exception as error:  # of one client
            say(f"a client is left to its timeouts: {error!r}")
        finally:
            self._changed.acquire()
