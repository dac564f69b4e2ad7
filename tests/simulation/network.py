"""Links between processes and servers, and sockets in memory: no kernel, no threads.

Bytes take a while, and come in order. A link may hold them back, in either direction or in both; a connection may break
after any byte. Requests of a connection that has been given up may still arrive, much later, as behind a proxy.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

from tests.simulation.scheduler import Dice
from wheel_lock.net.capabilities import Capabilities
from wheel_lock.net.connector import Connection
from wheel_lock.protocol import scripts
from wheel_lock.runtime.poller import Watch

if TYPE_CHECKING:
    from tests.simulation.hosts import Host
    from tests.simulation.processes import Process

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
REQUESTS, REPLIES = 0, 1  # the directions
LATE_S = 0.2  # upper bound of a request's delay, if nothing is wrong
_EXTENSIONS = [
    text
    for script in (scripts.EXTEND, scripts.EXTEND_REENTRANT, scripts.EXTEND_HOLDER)
    for form in (script.plain, script.flagged, script.sharded)
    for text in (form.sha1.encode(), form.source)
]


class Link:
    """The network between one process and one server.

    Attributes:
        held: Whether bytes are held back, in each direction.
        refuses: Whether no connection can be made.
        zombies: Whether requests of connections that were given up may arrive later.
        late: Whether some replies come about a time-to-live later.
        piece: The most bytes of a reply that arrive together on a narrow connection, or 0.
        room: The most bytes that the socket of a narrow connection takes at once, or 0.
    """

    def __init__(self, process: Process, host: Host) -> None:
        world = process.world
        self.process = process
        self.host = host
        self.scheduler = world.scheduler
        self.name = f"{process.name}-{host.name}"
        self._stream = world.tape.stream(f"link/{self.name}")
        self.held = [False, False]
        self.refuses = False
        self.zombies = world.settings.zombies
        straggler = world.settings.straggler
        self.slow = world.settings.slow_network and straggler in ("", process.name)
        self._slow_once_in = 2 if straggler else 4
        self._slowest_s = world.settings.slowest_s
        self.late = world.settings.late_replies
        self.piece = world.settings.piece
        self.room = world.settings.room
        self.wires: list[Wire] = []

    def draw(self) -> Dice:
        return self._stream.draw()

    def delay_s(self) -> float:
        """Return for how long the next bytes travel."""
        if not self.slow:
            return 0.0002
        dice = self.draw()
        return 0.0002 + (dice.up_to(self._slowest_s) if dice.one_in(self._slow_once_in) else dice.up_to(0.001))

    def is_narrow(self) -> bool:
        """Return whether the next connection is narrow. Few are: they take ten times as many events."""
        return bool(self.piece or self.room) and self.draw().one_in(4)

    def lateness_s(self) -> float:
        """Return by how much a reply comes later: now and then by about the time-to-live that it grants."""
        dice = self.draw()
        if not dice.one_in(25):
            return 0.0
        late_s = dice.pick([0.5, 1.0]) * (0.94 + dice.up_to(0.07))
        self.process.world.rules.trouble(late_s)
        return late_s

    @property
    def silent(self) -> bool:
        """Whether an attempt to connect gets no answer now."""
        return self.held[REQUESTS] or self.held[REPLIES] or self.host.paused

    def hold(self, requests: bool, replies: bool) -> None:
        """Hold bytes back from now on, or let them go on."""
        self.held = [requests, replies]
        for wire in list(self.wires):
            wire.go_on()

    def reset(self) -> None:
        """Break all connections."""
        for wire in list(self.wires):
            wire.break_off()

    def connect(self) -> Sock:
        """Return the process's end of a new connection."""
        wire = Wire(self)
        self.wires.append(wire)
        return wire.sock


class Wire:
    """One connection: what is on its way, in both directions."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sock = Sock(self)
        self._reader = hiredis.Reader()
        self._begun_at: float | None = None  # when the first byte of an incomplete command was sent
        self.session = link.host.server.connect(self.reply)
        self._waiting: tuple[deque[tuple[bytes, float]], ...] = (deque(), deque())
        self._arrives_at = [0.0, 0.0]
        self._held = [False, False]  # whether bytes are held back on this connection only
        self.over = False  # one of the ends has hung up, so nothing more is delivered to the process
        self.unread: deque[tuple[list[bytes], float]] = deque()  # commands that have arrived, while it is blocked
        self.blocked = False  # the server executes nothing of it until a WAIT has been answered
        self.wrote = 0  # the last change that one of its commands has made
        self.opened_at = link.scheduler.now
        self.releases: set[bytes] = set()  # the tokens of which a release has arrived
        self._cut_in: int | None = None  # bytes of replies until the connection breaks
        self._later_s: float | None = None  # by which its next requests come later, if it breaks with them

    # -- from the process to the server ------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._later_s is not None:
            self._held[REQUESTS] = True
            self.link.scheduler.after(0.0, self.break_off)
        self._travel(REQUESTS, data)

    def break_with_requests(self, later_s: float) -> None:
        """Have the connection break with its next requests, which still arrive, so much later."""
        self._later_s = later_s

    def _travel(self, direction: int, data: bytes) -> None:
        link = self.link
        self._waiting[direction].append((data, link.scheduler.now))
        if not self._holds(direction):
            self._schedule(direction)

    def _holds(self, direction: int) -> bool:
        return self.link.held[direction] or self._held[direction]

    def hold(self, requests: bool, replies: bool) -> None:
        """Hold bytes of this connection back from now on, or let them go on; others are not affected."""
        self._held = [requests, replies]
        self.go_on()

    def _schedule(self, direction: int) -> None:
        scheduler, delay_s = self.link.scheduler, self.link.delay_s()
        if direction == REPLIES and self.link.late:
            delay_s += self.link.lateness_s()
        at = max(self._arrives_at[direction], scheduler.now + delay_s)
        self._arrives_at[direction] = at
        scheduler.after(at - scheduler.now, self._request_arrives if direction == REQUESTS else self._reply_arrives)

    def go_on(self) -> None:
        """The link has changed: let what was held back travel."""
        for direction in (REQUESTS, REPLIES):
            if not self._holds(direction):
                for _ in self._waiting[direction]:
                    self._schedule(direction)

    def _request_arrives(self) -> None:
        waiting = self._waiting[REQUESTS]
        if waiting and not self._holds(REQUESTS):
            data, sent_at = waiting.popleft()
            self.link.host.receive(self, data, sent_at)

    def commands(self, data: bytes, sent_at: float) -> list[tuple[list[bytes], float]]:
        """Return the commands that are complete with these bytes, each with the time of its first byte. For the server."""
        begun_at = sent_at if self._begun_at is None else self._begun_at
        self._reader.feed(data)
        found = []
        while (words := self._reader.gets()) is not False:
            found.append((words, begun_at))
            begun_at = sent_at
        self._begun_at = begun_at if self._reader.has_data() else None
        return found

    # -- from the server to the process ------------------------------------------------------------------------------

    def reply(self, data: bytes) -> None:
        if not self.over:
            self._travel(REPLIES, data)

    def _reply_arrives(self) -> None:
        waiting = self._waiting[REPLIES]
        if not waiting or self._holds(REPLIES) or self.over:
            return
        data, _ = waiting.popleft()
        if self._cut_in is not None:
            self._cut_in, data = self._cut_in - len(data), data[: self._cut_in]
        self.sock.arrive(data)
        if self._cut_in is not None and self._cut_in <= 0:
            self.break_off()

    # -- the end -----------------------------------------------------------------------------------------------------

    def cut_in(self, count: int) -> None:
        """Have the connection break when so many bytes more have arrived from the server."""
        self._cut_in = count
        if not count:
            self.break_off()

    def break_off(self) -> None:
        """Break the connection, for both ends."""
        if not self.over:
            self.sock.fail(ConnectionResetError("the connection was reset"))
            self.link.host.server.disconnect(self.session)
        self._end(discards=True)

    def hang_up(self, *, resets: bool) -> None:
        """The process closes its end; the server finds out when it hears of it.

        Args:
            resets: Whether what has not arrived yet is discarded, but by proxies.
        """
        if not self.over:
            link = self.link
            link.scheduler.after(link.delay_s(), lambda: link.host.server.disconnect(self.session))
            self._end(discards=resets)

    def _end(self, *, discards: bool) -> None:
        self.link.process.breaks += not self.over
        self.over = True
        link, (requests, replies) = self.link, self._waiting
        replies.clear()
        left = list(requests)
        if discards:
            requests.clear()
        if not requests and self in link.wires:
            link.wires.remove(self)
        if left and discards and (link.zombies or self._later_s is not None):
            dice = link.draw()
            if dice.one_in(2) or self._later_s is not None:
                wait_s = LATE_S + (dice.up_to(4.0) if self._later_s is None else self._later_s)
                link.process.world.rules.trouble(wait_s)  # an acquire among them may be granted too late
                for data, sent_at in left:
                    if any(text in data for text in _EXTENSIONS):
                        continue  # only an extension may shorten, and a late one shortens what was promised since
                    link.scheduler.after(wait_s, partial(link.host.receive, self, data, sent_at))


class Sock:
    """The process's end of a connection, with the methods of a socket that the engine uses."""

    family = socket.AF_UNIX

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        process = wire.link.process
        process.last_fd += 1
        self._fd = process.last_fd
        self._inbox = bytearray()
        self._error: Exception | None = None
        self.readable = False
        self._resets = False
        self.closed = False
        narrow = wire.link.is_narrow()
        self._piece = wire.link.piece if narrow else 0
        self._takes = self._room = wire.link.room if narrow else 0
        self.on_ready: Callable[[], object] = process.poke

    # -- what the network does ---------------------------------------------------------------------------------------

    def arrive(self, data: bytes) -> None:
        if data and not self.closed:
            self._inbox += data
            self.readable = True
            self.on_ready()

    def fail(self, error: Exception) -> None:
        if not self.closed:
            self._error = error
            self.readable = True
            self.on_ready()

    def ready(self, events: int) -> int:
        """Return for which of ``events`` the socket is ready, as in ``selectors``."""
        ready = _READ if self.readable else 0
        if events != _READ and (self._room or not self._takes):
            ready |= _WRITE
        return ready & events

    # -- what a socket does ------------------------------------------------------------------------------------------

    def take_all(self) -> None:
        """Take all bytes at once from now on, as a blocking socket does."""
        self._takes = 0

    def fileno(self) -> int:
        return -1 if self.closed else self._fd

    def send(self, data: bytes | memoryview) -> int:
        if self.closed:
            raise OSError(9, "Bad file descriptor")
        if self._error is not None:
            raise BrokenPipeError("the connection is broken")
        if self._takes:
            if not self._room:
                raise BlockingIOError
            data = data[: self._room]
            self._room -= len(data)
            self.wire.link.scheduler.after(0.0005, self._make_room)
        self.wire.send(bytes(data))
        self.wire.link.process.has_sent()
        return len(data)

    def _make_room(self) -> None:
        if not self.closed:
            self._room = self._takes
            self.wire.link.process.poke()

    def sendmsg(self, parts: list[bytes]) -> int:
        return self.send(b"".join(parts))

    def recv(self, most: int) -> bytes:
        if self.closed:
            raise OSError(9, "Bad file descriptor")
        if not self._inbox:
            if self._error is not None:
                raise self._error
            raise BlockingIOError
        self.wire.link.process.receives(self.wire.link)
        if self._piece:
            most = min(most, self._piece)
        data = bytes(self._inbox[:most])
        del self._inbox[:most]
        self.readable = bool(self._inbox) or self._error is not None
        return data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.wire.hang_up(resets=self._resets)

    def setsockopt(self, level: int, option: int, value: object) -> None:
        self._resets = self._resets or option == socket.SO_LINGER

    def setblocking(self, blocking: bool) -> None: ...

    def shutdown(self, how: int) -> None: ...

    def detach(self) -> int:
        self.closed = True
        return -1


class Poller:
    """The poller of a process's timer: what its sockets are ready for."""

    meanings = {_READ: _READ, _WRITE: _WRITE}  # noqa: RUF012 - as in wheel_lock.runtime.poller

    def __init__(self) -> None:
        self.watched: dict[int, Watch] = {}
        self._socks: dict[int, tuple[Any, int]] = {}

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        found = []
        for fd, (sock, events) in self._socks.items():
            if (sock.readable or events != _READ) and (ready := sock.ready(events)):
                found.append((fd, ready))
        return found

    def watch(self, sock: Any, events: int, watch: Watch) -> None:
        fd = sock.fileno()
        self.watched[fd] = watch
        self._socks[fd] = (sock, events)

    def unwatch(self, sock: Any) -> None:
        fd = sock.fileno()
        self.watched.pop(fd, None)
        self._socks.pop(fd, None)

    def close(self) -> None:
        self.watched.clear()
        self._socks.clear()


def connection_over(sock: Any, host: Host) -> Connection:
    """Return a connection that has been made, as a connector hands it over."""
    return Connection(sock, (host.name, "6379"), Capabilities(host.capability))


def reach(link: Link, timeout_s: float) -> None:
    """Let the time pass that an attempt to connect takes. Raises what the attempt raises."""
    process, left_s = link.process, timeout_s
    process.sleep(3 * link.delay_s())
    while link.silent and not link.refuses:
        if left_s <= 0:
            raise TimeoutError("no answer to an attempt to connect")
        process.sleep(0.05)
        left_s -= 0.05
    if link.refuses or not link.host.alive:
        raise ConnectionRefusedError("not listening")


class SimulatedConnector:
    """Connects a process to a server. The attempt takes a few round trips, and as long as the link is silent."""

    discovers = False
    in_cluster = False
    owner: str | None = None

    twin = None  # several masters are different ones

    def __init__(self, link: Link, on_connected: Callable[[Host], object] = lambda host: None) -> None:
        self._link = link
        self._runs_scripts = True
        self._on_connected = on_connected

    def listener(self) -> SimulatedConnector:
        other = SimulatedConnector(self._link)
        other._runs_scripts = False
        return other

    def connect(self, timeout_s: float) -> Connection:
        link = self._link
        reach(link, timeout_s)
        link.host.greet(self._runs_scripts)
        self._on_connected(link.host)
        return connection_over(link.connect(), link.host)

    def label(self) -> str:
        return self.describe()

    def describe(self) -> str:
        return self._link.host.name
