"""The connection of the direct path: one request at a time, sent by the thread that waits for its reply."""

from __future__ import annotations

import re
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
_LONGEST_ERROR = 1_000  # characters of an error reply; a longer one counts as malformed
_LONGEST_PART = 1 << 16  # bytes without an end; the longest reply is that to INFO
_RUN_ID = re.compile(rb"^run_id:(\S{10,})", re.MULTILINE)

INFO: bytes = command(b"INFO", b"server")


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

    __slots__ = (
        "_brief",
        "_connection",
        "_now",
        "_poll",
        "_reader",
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
    return run_id(connection.ask(INFO, until))
