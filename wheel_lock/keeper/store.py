"""The servers of a process that has ended, and what each of them is asked to release."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.keeper.crew import Do, say
from wheel_lock.keeper.entries import Entry
from wheel_lock.keeper.server import REFUSED, RELEASED, Server

_DOUBT_S = 0.1  # for which one server is asked, and others are not asked for the same


class Store:
    """The servers of a dead client. Of several, each knows by MOVED and ASK where what it has not got is.

    None waits for another one: each has a list of what it is to be asked, and is asked as long as there is something in it.

    Args:
        servers: The servers.
        do: Has a call made, which may block.

    Attributes:
        servers: Those that there is a connection to.
        silent: Those that did not answer the last time.
        refused: True if one has refused in this pass.
    """

    def __init__(self, servers: Sequence[Server], do: Do) -> None:
        self.servers: list[Server] = list(servers)
        self.silent: set[Server] = set()
        self.refused: bool = False
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

        Args:
            entries: The entries.
            over: Called when all servers have answered or do not answer, with the number of entries that are not released.
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
