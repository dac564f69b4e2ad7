"""The passes of the keeper over what an ended process held: each asks its servers to release it, until all has expired."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.keeper.crew import Crew, Do, say
from wheel_lock.keeper.entries import Entry
from wheel_lock.keeper.server import REFUSED, RELEASED, Server

MOST_PATIENT = 256  # burials that wait for longer than the last of the pauses; a new one takes the place of the oldest
_PAUSES_S = (0.1, 0.4, 1.5, 8.0)  # between two passes; the last one again, five times as long each time
_LONGER = 5.0
_DOUBT_S = 0.1  # for which one server is asked, and others are not asked for the same

_WITHOUT = "; what is where there was no connection to expires by itself"
_SILENT = "; a server that does not answer is asked again"
_REFUSED = "; a server that refuses is asked again"


class Store:
    """The servers of a dead client. Of several, each knows by MOVED and ASK where what it has not got is.

    None waits for another one: each has a list of what it is to be asked, and is asked as long as there is something in it.
    """

    def __init__(self, servers: Sequence[Server], do: Do) -> None:
        self.servers: list[Server] = list(servers)  # those that there is a connection to
        self.silent: set[Server] = set()  # those that did not answer the last time
        self.refused: bool = False  # by one, in this pass
        self._do = do
        self._lock = threading.Lock()
        self._home: dict[Entry, Server] = {}  # where it was, if that is not where it was looked for first
        self._open: dict[Entry, None] = {}  # of this pass, which no server has released whose they are to release
        self._due: dict[Server, tuple[list[Entry], list[Entry]]] = {}  # what to ask: without ASKING, and with
        self._asked: set[tuple[Server, Entry, bool]] = set()  # in this pass
        self._at_work: dict[Server, list[Entry]] = {}  # those that are being asked, and for what; no entries before
        self._over: Callable[[int], object]

    def release(self, entries: list[Entry], over: Callable[[int], object]) -> None:
        """Begin to release what the entries name.

        When all servers have answered, or do not answer, ``over`` is called with the number of entries that are left.
        """
        with self._lock:
            self._over = over
            self._open = dict.fromkeys(entries)
            self._asked.clear()
            self.refused = False
            speaking = self._speaking() or self.servers
            for number, entry in enumerate(self._open):
                home = self._home.get(entry)
                self._put(home if home in self.servers else speaking[number % len(speaking)], entry, asking=False)
            ready = self._ready()
        self._begin(ready)

    def _speaking(self) -> list[Server]:
        return [server for server in self.servers if server not in self.silent]

    def _put(self, server: Server | None, entry: Entry, *, asking: bool) -> None:
        if server is not None and (server, entry, asking) not in self._asked:
            self._asked.add((server, entry, asking))
            self._due.setdefault(server, ([], []))[asking].append(entry)

    def _ready(self) -> list[Server]:
        ready = [server for server in self._due if server not in self._at_work]
        self._at_work.update((server, []) for server in ready)
        return ready

    def _begin(self, ready: list[Server]) -> None:
        for server in ready:
            self._doubt_later(server, self._at_work[server])  # others may be at its place
            self._do(partial(self._work, server), 0.0, server.place)

    def _doubt_later(self, server: Server, asked: list[Entry]) -> None:
        if len(self.servers) > 1:
            self._do(partial(self._doubt, server, asked), _DOUBT_S, None)

    def _work(self, server: Server) -> None:
        while True:
            with self._lock:
                due = self._due.pop(server, None)
                if due is None:
                    del self._at_work[server]
                    left = None if self._at_work else len(self._open)
                    break
            for asking in (False, True):
                if due[asking]:
                    self._ask(server, due[asking], asking)
        if left is not None:
            self._over(left)

    def _ask(self, server: Server, entries: list[Entry], asking: bool) -> None:
        answers: dict[Entry, str] = {}
        broken = ""
        self._at_work[server] = entries
        self._doubt_later(server, entries)
        if server in self.servers:
            try:
                answers = server.release(entries, asking=asking)
            except Exception as error:  # whatever it is, it costs this server only
                broken = f"the connection to a server has ended: {error}"
        with self._lock:
            self._at_work[server] = []  # it is not in doubt any more
            if broken:
                self.servers.remove(server)
            answered = server not in self.servers or all(entry in answers for entry in entries)
            (self.silent.discard if answered else self.silent.add)(server)
            if not answered:
                self._due.pop(server, None)  # until the next pass
            self._sort(entries, answers)
            ready = self._ready()
        if broken:
            say(broken)
        self._begin(ready)

    def _doubt(self, server: Server, asked: list[Entry]) -> None:
        """Ask others for what one server has been asked, or was to be asked, for some time."""
        ready: list[Server] = []
        with self._lock:
            if self._at_work.get(server) is asked:
                self.silent.add(server)
                self._sort(asked or [entry for some in self._due.get(server, ()) for entry in some], {})
                ready = self._ready()
        self._begin(ready)

    def _sort(self, entries: list[Entry], answers: dict[Entry, str]) -> None:
        by_name = {name: server for server in self.servers for name in server.names}
        speaking = self._speaking()
        self.refused = self.refused or REFUSED in answers.values()
        for number, entry in enumerate(entries):
            name = answers.get(entry)
            if name == RELEASED:
                self._open.pop(entry, None)
            elif name is not None and name != REFUSED:
                if (server := by_name.get(name)) is not None:
                    self._home[entry] = server
                    if server not in self.silent or server in self._at_work:
                        self._put(server, entry, asking=True)
            elif entry in self._open:  # another one may know where it is, or have it: a refusal does not tell
                others = [each for each in speaking if (each, entry, False) not in self._asked]
                self._put(others[number % len(others)] if others else None, entry, asking=False)


class Burial:
    """The passes over what one dead client held."""

    def __init__(self, read: Callable[[], list[Entry]], servers: Sequence[Server], graves: Graves) -> None:
        self._read = read  # called once
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
    """The burials of all clients that have ended."""

    def __init__(self) -> None:
        self.crew: Crew = Crew()  # does what may block
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
