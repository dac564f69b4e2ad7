"""The connection of the direct path: who may have one, how it is opened, and one request at a time on it."""

from __future__ import annotations

import math
import re
import select
import sys
from collections.abc import Callable
from functools import partial

import hiredis

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.query import Query
from wheel_lock.engine.state import EngineState
from wheel_lock.errors import LockServerError
from wheel_lock.net.brief_wait import BriefWait
from wheel_lock.net.connection import reset_at_close
from wheel_lock.net.connector import Connection, sanitize
from wheel_lock.net.node import Node, taken
from wheel_lock.protocol.resp import Reply, command
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.clock import SystemClock
from wheel_lock.runtime.held_calls import receiver, sender

_READ_BYTES = 16_000
_LONGEST_ERROR = 1_000  # characters of an error reply; a longer one counts as malformed
_LONGEST_PART = 1 << 16  # bytes without an end; the longest reply is that to INFO
_WORTH_IT = 64  # acquires that could have used the path, before it gets a connection
_MOST_WORTH_IT = 1 << 14  # the same after many failures
_LONGEST_TICK_S = 0.02  # longer ones would make the looks late
_RUN_ID = re.compile(rb"^run_id:(\S{10,})", re.MULTILINE)

_INFO: bytes = command(b"INFO", b"server")

# Of exactly one interpreter lock it is known when threads change. A free-threaded build has none, or one that comes and
# goes with the import of an extension module (sys._is_gil_enabled): the build decides, whatever the moment.
_FREE_THREADED = "t" in getattr(sys, "abiflags", "")
_SYSTEM_HAS_IT: bool = hasattr(select, "poll") and sys.implementation.name == "cpython" and not _FREE_THREADED


def fits(engine: EngineState) -> bool:
    """Return whether an engine of one server may have a direct path: nothing must see each grant at once."""
    options = engine.options
    counted = options.max_held is not None or options.min_replicas > 0
    watched = options.watch or options.declare_keys
    real = engine.timer.threaded and isinstance(engine.timer.clock, SystemClock)  # a caller waits in real time
    quick = engine.timer.scale.tick_s <= _LONGEST_TICK_S
    return not (counted or watched) and real and quick and _SYSTEM_HAS_IT


class NoReply(Exception):
    """There is no reply: in time, or at all, or none that can be read. What was sent may have been executed."""


class NotSent(NoReply):
    """There is no reply because nothing was sent: the connection had ended before, or cannot be trusted."""


class DirectConnection:
    """A connected socket. One thread at a time uses it; see :class:`DirectPath`.

    A reply that has no end, or does not come alone, is malformed, and so is whatever arrives unasked.

    Args:
        connection: The connection, which it owns from now on.
        pipeline: The identity of the node's connection to the same server.
        clock: Returns the time, in seconds.

    Attributes:
        capability: The capability level of the server.
        pipeline: The argument.
    """

    def __init__(self, connection: Connection, pipeline: object, clock: Callable[[], float]) -> None:
        sock = connection.sock
        sock.setblocking(False)
        self._connection = connection
        self._sock = sock
        self._now = clock
        self._send = sender(sock)
        self._receive = receiver(sock, _READ_BYTES)
        self._reader = hiredis.Reader(replyError=_error)
        self._brief = BriefWait(sock, lambda: True)
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        self._poll = poller.poll
        self.capability: int = connection.capability
        self.pipeline: object = pipeline

    def ask(self, request: bytes, until: float) -> Reply:
        """Send one request, and wait for its reply until the clock shows ``until``.

        Raises:
            NoReply: There is none. The connection cannot be used any more.
            NotSent: And nothing was sent.
        """
        try:
            # A reply that came twice would be taken for the reply to this request.
            self._receive()
            raise NotSent("the connection ended, or something arrived that nothing was asked for")
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:  # ValueError: its descriptor is closed
            raise NotSent(str(error)) from error
        try:
            if self._send(request) != len(request):
                raise NoReply("the socket is full")
            now, received, brief, reader = self._now(), 0, self._brief, self._reader
            soon = brief.possible and brief.after_write(1, now)
            while True:
                if not soon:
                    # A stopped process wakes after the limit, when the reply has long been there: it is read all the same.
                    ready = self._poll((until - now) * 1000 if now < until else 0)
                    if not ready and now >= until:
                        raise NoReply("no reply in time")
                    now = self._now()
                    if not ready:
                        continue
                    if brief.possible:
                        brief.before_read(now)
                soon = False
                part = self._receive()
                if not part:
                    raise NoReply("the server closed the connection")
                reader.feed(part)
                reply: Reply = reader.gets()
                if reply is not False:
                    if reader.has_data():
                        raise NoReply("more than one reply")
                    return reply
                received += len(part)
                if received > _LONGEST_PART:
                    raise NoReply("no end of a reply")
        except (OSError, ValueError, hiredis.HiredisError) as error:
            raise NoReply(str(error)) from error

    def reset(self) -> None:
        """Close it, and have the system discard what it has not delivered yet."""
        reset_at_close(self._sock)
        self.close()

    def close(self) -> None:
        """Close it. No effect if it is closed already."""
        self._connection.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: close the child's copy of the descriptor without sending anything to the server."""
        self._connection.after_fork_in_child()


def _error(text: str) -> ServerError:
    if len(text) > _LONGEST_ERROR:
        raise NoReply("a very long error")
    return ServerError(text)


def run_id(info: Reply) -> bytes | None:
    """Return the identity of a server's process from its reply to INFO; None if it gives none."""
    found = _RUN_ID.search(info) if isinstance(info, bytes) else None
    return found and found[1]


def ask_run_id(connection: DirectConnection, until: float) -> bytes | None:
    """Return the identity of the server's process at the other end of a new connection. On a thread that may block."""
    return run_id(connection.ask(_INFO, until))


class _Identity(Future[bytes | None]):
    """The identity of the server's process. (A callback that refers to its future would be a cycle.)"""

    __slots__ = ("_opener", "_pipeline")

    def __init__(self, opener: Opener, pipeline: object) -> None:
        super().__init__(noop)
        self._opener = opener
        self._pipeline = pipeline

    def _tell(self) -> None:
        self._opener.identified(self, self._pipeline)


class Opener:
    """Opens the connection of the path, to the process of the server that the node is connected to.

    Args:
        opened: Called with the connection.

    Attributes:
        worth_it: The acquires that could have used the path, before it gets a connection.
        missed: The acquires that could have used the path if it had a connection.
        connecting: True while one is being opened. Written by the timer's thread.
    """

    def __init__(self, table: LeaseTable, node: Node, opened: Callable[[DirectConnection], object]) -> None:
        self._table = table
        self._state = table.state
        self._timer = table.timer
        self._node = node
        self._opened = opened
        self.worth_it: float = _WORTH_IT
        self.missed: int = 0
        self.connecting: bool = False

    def miss(self) -> bool:
        """Count an acquire that could have used the path; return whether to open a connection. From any thread."""
        self.missed += 1
        if self.missed < self.worth_it or self.connecting:
            return False
        self.missed = 0
        return True

    def used(self, uses: int) -> None:
        """Note how often the connection was used: after one that was worth it, few acquires are worth the next."""
        if uses > self.worth_it:
            self.worth_it = _WORTH_IT

    def open(self) -> None:
        """Begin to connect to the server that the node is connected to."""
        pipeline = self._node.pipeline
        if pipeline is not None and not self.connecting:
            self.connecting = True
            identity = _Identity(self, pipeline)
            Query(self._table, b"INFO", b"INFO", Command(None, 0, 0, _INFO), run_id, identity).start()

    def identified(self, known: Future[bytes | None], pipeline: object) -> None:
        """Connect to the server of that identity, which is the one at the other end of ``pipeline``."""
        if isinstance(known.error, LockServerError) or (known.error is None and known.result() is None):
            self.worth_it = math.inf  # the user may not ask, or the server does not say
        if known.error is not None or (identity := known.result()) is None:
            self.failed()
            return
        try:
            self._state.launch(partial(self._connect, pipeline, identity))
        except RuntimeError:  # no thread can be started
            self.failed()

    def _connect(self, pipeline: object, identity: bytes) -> None:
        """Connect, on a helper thread. A balancer may lead to another server, where the lock would not be excluded."""
        connection: Connection | None = None
        now = self._timer.clock.now
        try:
            limit_s = self._state.options.connect_timeout_s
            connection = self._node.connector.connect(limit_s)
            plain = not hasattr(connection.sock, "pending") and not connection.missing_rights
            arrived = [DirectConnection(connection, pipeline, now)] if plain else []
            if plain and ask_run_id(arrived[0], now() + limit_s) == identity and not self._state.over:
                connection = None
                self._timer.post(partial(self._arrived, arrived), self._state)
                if self._timer.stopped and (left := taken(arrived)) is not None:
                    left.close()  # it may have been posted behind the last turn
                return
        except BaseException as error:
            sanitize(error)
        if connection is not None:
            connection.close()
        self._timer.post(self.failed, self._state)

    def _arrived(self, arrived: list[DirectConnection]) -> None:
        self.connecting = False
        if (connection := taken(arrived)) is None:
            return
        if self._state.closed or connection.pipeline is not self._node.pipeline:
            connection.close()
        else:
            self._opened(connection)

    def failed(self) -> None:
        """Have the next connection be worth twice as many acquires."""
        self.connecting = False
        if self.worth_it < _MOST_WORTH_IT:
            self.worth_it *= 2
