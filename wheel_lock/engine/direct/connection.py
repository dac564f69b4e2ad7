"""The connection of the direct path: one request at a time, sent by the thread that waits for its reply."""

from __future__ import annotations

import select
from collections.abc import Callable

import hiredis

from wheel_lock.net.brief_wait import BriefWait
from wheel_lock.net.connection import reset_at_close
from wheel_lock.net.connector import Connection
from wheel_lock.protocol.resp import Reply, command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.held_calls import receiver, sender

_READ_BYTES = 16_000
_LONGEST_ERROR = 1_000  # bytes of an error reply; a longer one counts as malformed
_LONGEST_INTEGER = 23
_ENDS = b"\r\n"


class NoReply(Exception):
    """There is no reply: in time, or at all, or none that can be read. What was sent may have been executed."""


class NotSent(NoReply):
    """There is no reply because nothing was sent: the connection had ended before, or cannot be trusted."""


class DirectConnection:
    """A connected socket. One thread at a time uses it; see :class:`DirectPath`.

    A reply is one line: a status, an integer, an error or nil. Anything else, and whatever arrives unasked, is malformed.

    Args:
        connection: The connection, which it owns from now on.
        pipeline: The identity of the node's connection to the same server.
        clock: Returns the time, in seconds.

    Attributes:
        capability: The capability level of the server.
        pipeline: The argument.
    """

    __slots__ = (
        "_brief",
        "_connection",
        "_now",
        "_poll",
        "_receive",
        "_send",
        "_sock",
        "capability",
        "pipeline",
    )

    def __init__(self, connection: Connection, pipeline: object, clock: Callable[[], float]) -> None:
        sock = connection.sock
        sock.setblocking(False)
        self._connection = connection
        self._sock = sock
        self._now = clock
        self._send = sender(sock)
        self._receive = receiver(sock, _READ_BYTES)
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
            now, data, brief = self._now(), b"", self._brief
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
                data += part
                if data[-2:] == _ENDS:
                    return _parsed(data)
                if len(data) > _LONGEST_ERROR:
                    raise NoReply("no reply to a request about a lock")
        except (OSError, ValueError) as error:
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


def _parsed(line: bytes) -> Reply:
    """Parse a reply of one line with its end."""
    if line == b"+OK\r\n":
        return b"OK"
    first = line[:1]
    if line == b"$-1\r\n":
        return None
    if first == b":" and len(line) <= _LONGEST_INTEGER:
        digits = line[1:-2]
        if digits.isdigit() or (digits[:1] == b"-" and digits[1:].isdigit()):
            return int(digits)
    if first == b"-" and line.count(_ENDS) == 1 and len(line) <= _LONGEST_ERROR:
        return ServerError(line[1:-2].decode(errors="replace"))
    raise NoReply("no reply to a request about a lock")


def run_id(info: Reply) -> bytes | None:
    """Return the identity of a server's process from its reply to INFO; None if it gives none."""
    if not isinstance(info, bytes):
        return None
    for line in info.splitlines():
        if line.startswith(b"run_id:") and len(line) > 16:
            return line[7:]
    return None


INFO: bytes = command(b"INFO", b"server")
_LONGEST_INFO = 1 << 16


def ask_run_id(connection: Connection, timeout_s: float) -> bytes | None:
    """Return the identity of the server's process at the other end of a new connection. On a thread that may block."""
    sock = connection.sock
    sock.settimeout(timeout_s)
    sock.sendall(INFO)
    reader = hiredis.Reader(replyError=ServerError)
    total = 0
    while (reply := reader.gets()) is False:
        data = sock.recv(_READ_BYTES)
        total += len(data)
        if not data or total > _LONGEST_INFO:
            return None
        reader.feed(data)
    return run_id(reply)
