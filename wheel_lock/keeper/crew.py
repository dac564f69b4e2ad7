"""The threads of the keeper: they do what may block, are few, and cost nothing for what is to be done later."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable

MOST_THREADS = 64
MOST_AT_ONE_PLACE = 8  # threads; one while no more than so many are left, which go to places without any
_MOST_LINES = 1000  # that wait to be written

Work = Callable[[], object]
Do = Callable[[Work, float, Hashable], object]
"""Has work done after a pause in seconds, at a place; see :meth:`Crew.do`."""

_Due = tuple[float, int, Work, Hashable]


class _Lines:
    """The lines on stderr. A thread writes them as long as there are some: nothing else waits for who reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._writing = False

    def say(self, text: str) -> None:
        """Have a line written. One for which there is no room is counted, and its number is said later."""
        with self._lock:
            if len(self._lines) < _MOST_LINES:
                self._lines.append(text[: select.PIPE_BUF])
            else:
                self._left_out += 1
            if not self._writing:
                try:
                    threading.Thread(target=self._write, daemon=True).start()
                    self._writing = True
                except RuntimeError:
                    pass  # the system has none left: it is written with a later one

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._lines and self._left_out:
                    self._lines.append(f"{self._left_out} lines were left out, because no one read them")
                    self._left_out = 0
                if not self._lines:
                    self._writing = False
                    return
                text = self._lines.popleft()
            line = f"wheel-lock keeper: {text}".encode("utf-8", "backslashreplace")[: select.PIPE_BUF - 1] + b"\n"
            try:
                os.write(2, line)
            except OSError:
                pass  # no one could read it


say: Callable[[str], None] = _Lines().say


class Crew:
    """Does what it is given when its time has come. One thread waits for that, and others work."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._works: list[_Due] = []  # a heap
        self._numbers = itertools.count()
        self._busy = Counter[Hashable]()  # threads at each place
        self._crowd: dict[Hashable, list[_Due]] = {}  # heaps: what is due at a place with as many as it may have
        self._threads = 0
        self._waits = False  # one of the threads, for the time of the first work

    def do(self, work: Work, pause_s: float = 0.0, place: Hashable = None) -> None:
        """Have ``work()`` called on a thread, in ``pause_s`` seconds at the earliest. From any thread.

        ``place`` is where it may block, such as the address of a server: it waits for others there, and delays no others.
        """
        with self._changed:
            heapq.heappush(self._works, (time.monotonic() + pause_s, next(self._numbers), work, place))
            if self._waits:
                self._changed.notify()
            else:
                self._add_thread()

    def drop(self, work: Work) -> None:
        """Forget work that has not begun."""
        with self._changed:
            self._works = [due for due in self._works if due[2] != work]
            heapq.heapify(self._works)

    def go_on(self) -> bool:
        """Start a thread, if there is work and none; return False if the system has none for it now."""
        with self._changed:
            if self._works and not self._threads:
                self._add_thread()
            return not self._works or self._threads > 0

    def _add_thread(self) -> None:
        if self._threads < MOST_THREADS:
            try:
                threading.Thread(target=self._run, daemon=True).start()
                self._threads += 1
            except RuntimeError:
                pass  # the system has none left; see `go_on`

    def _run(self) -> None:
        with self._changed:
            while self._works and not self._waits:
                pause_s = self._works[0][0] - time.monotonic()
                if pause_s > 0:
                    self._waits = True
                    self._changed.wait(pause_s)
                    self._waits = False
                else:
                    self._do(heapq.heappop(self._works))
            self._threads -= 1

    @property
    def _most(self) -> int:
        """How many threads a place may have now: those of servers that do not answer leave some to others."""
        return MOST_AT_ONE_PLACE if self._threads <= MOST_THREADS - MOST_AT_ONE_PLACE else 1

    def _do(self, due: _Due) -> None:
        _, _, work, place = due
        if place is not None and self._busy[place] >= self._most:
            heapq.heappush(self._crowd.setdefault(place, []), due)
            return
        self._busy[place] += 1
        if self._works and not self._waits:
            self._add_thread()  # for the next one
        self._changed.release()
        try:
            work()
        except Exception as error:  # of one client
            say(f"a client is left to its timeouts: {error!r}")
        finally:
            self._changed.acquire()
            self._leave(place)

    def _leave(self, place: Hashable) -> None:
        """Have those that wait for a place take their turns, as many as it may have."""
        self._busy[place] -= 1
        crowd = self._crowd.get(place, [])
        turns = min(self._most - self._busy[place], len(crowd))
        for _ in range(turns):
            heapq.heappush(self._works, heapq.heappop(crowd))
        if not crowd:
            self._crowd.pop(place, None)
        if not self._busy[place]:
            del self._busy[place]
        if turns > 0 and self._waits:
            self._changed.notify()
