"""The passes of the keeper over what an ended process held: each releases it, until all has expired."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from wheel_lock.keeper.crew import Crew, say
from wheel_lock.keeper.entries import Entry
from wheel_lock.keeper.server import Server
from wheel_lock.keeper.store import Store

MOST_PATIENT = 256  # burials that wait for longer than the last of the pauses; a new one takes the place of the oldest
_PAUSES_S = (0.1, 0.4, 1.5, 8.0)  # between two passes; the last one again, five times as long each time
_LONGER = 5.0

_WITHOUT = "; what is where there was no connection to expires by itself"
_SILENT = "; a server that does not answer is asked again"
_REFUSED = "; a server that refuses is asked again"


class Burial:
    """The passes over what one dead client held.

    Args:
        read: Reads the entries. Called once.
        servers: The servers.
        graves: All burials.
    """

    def __init__(self, read: Callable[[], list[Entry]], servers: Sequence[Server], graves: Graves) -> None:
        self._read = read
        self._servers = servers
        self._graves = graves
        self._store = Store(servers, graves.crew.do)
        self._entries: list[Entry] = []
        self._pauses = iter(_PAUSES_S)
        self._pause_s = 0.0
        self.died_at: float = time.monotonic()
        self._began_at = 0.0

    def begin(self) -> None:
        """Read what was held, and release it for the first time."""
        try:
            self._entries = self._read()
        except BaseException:
            self._graves.end(self)
            raise
        self._began_at = time.monotonic()
        self.next_pass()

    def next_pass(self) -> None:
        """Release what has not expired."""
        if not self._graves.wake(self):
            return
        if self._entries and self._store.servers:
            self._store.release(self._entries, self._over)
        else:
            self._graves.end(self)
            if self._entries:
                say(f"a process has ended{_WITHOUT}")

    def _over(self, left: int) -> None:
        now = time.monotonic()
        if not self._pause_s:
            took_ms = (now - self._began_at) * 1000
            why = _SILENT if self._store.silent else _REFUSED if self._store.refused else _WITHOUT if left else ""
            say(f"a process has ended: released {len(self._entries) - left} in {took_ms:.0f} ms{why}")
        self._entries = [entry for entry in self._entries if self.died_at + entry[1] / 1000 > now]
        if not self._entries or not self._store.servers:
            self._graves.end(self)
            return
        patient = self._pause_s >= _PAUSES_S[-1]
        self._pause_s = next(self._pauses, self._pause_s * _LONGER)
        left_s = max(ttl_ms for _, ttl_ms, _ in self._entries) / 1000 - (now - self.died_at)
        self._graves.wait(self, min(self._pause_s, left_s), patient=patient)

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            server.close()


class Graves:
    """The burials of all clients that have ended.

    Attributes:
        crew: Its threads do what may block.
    """

    def __init__(self) -> None:
        self.crew: Crew = Crew()
        self._lock = threading.Lock()
        self._burials: set[Burial] = set()
        self._patient: dict[Burial, None] = {}  # those that may be ended for the sake of others, the oldest first

    def __len__(self) -> int:
        return len(self._burials)

    def bury(self, read: Callable[[], list[Entry]], servers: Sequence[Server], delay_s: float) -> None:
        """Release in ``delay_s`` seconds what a client held, and again until it has expired."""
        burial = Burial(read, servers, self)
        with self._lock:
            self._burials.add(burial)
        self.crew.do(burial.begin, delay_s)

    def wait(self, burial: Burial, pause_s: float, *, patient: bool) -> None:
        """Have the next pass of a burial in ``pause_s`` seconds; a patient one may end before."""
        oldest = None
        with self._lock:
            self.crew.do(burial.next_pass, pause_s)
            if patient:
                self._patient[burial] = None
                if len(self._patient) > MOST_PATIENT:
                    oldest = next(iter(self._patient))
                    del self._patient[oldest]
                    self._burials.discard(oldest)  # so its next pass does not begin while its connections are closed
                    self.crew.drop(oldest.next_pass)
        if oldest is not None:
            oldest.close()

    def wake(self, burial: Burial) -> bool:
        """Return whether a burial has not ended; from now on it does not end for the sake of others."""
        with self._lock:
            self._patient.pop(burial, None)
            return burial in self._burials

    def end(self, burial: Burial) -> None:
        """End a burial: its connections are closed."""
        with self._lock:
            self._burials.discard(burial)
        burial.close()
