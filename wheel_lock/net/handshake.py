"""The parser for replies that redis-py reads, with the limits of a pipelined connection.

redis-py sends a few commands before a connection is handed over, and all commands to Sentinels and for slot maps. Its own
parsers trust every length, and buffer without a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis
from redis._parsers import BaseParser
from redis.exceptions import ConnectionError, InvalidResponse
from redis.utils import str_if_bytes

from wheel_lock.protocol.reply_reader import NOTHING, TO_QUESTIONS, ReplyReader, as_malformed
from wheel_lock.protocol.resp import MalformedReply

_MAX_DEPTH = 8  # limit for nested lists


class HungUp(ConnectionError):
    """The server has closed the connection."""


class HandshakeParser(BaseParser):  # type: ignore[misc, unused-ignore]
    """A parser for redis-py's connections, which reads ``socket_read_size`` bytes at once, or 64 KiB if that is more."""

    def __init__(self, socket_read_size: int) -> None:
        self._read_size = max(socket_read_size, 1 << 16)
        self._sock: Any = None
        self._reader: ReplyReader | None = None

    def on_connect(self, connection: Any, **more: Any) -> None:
        parse_error = cast(Callable[[str], Exception], self.parse_error)
        password = str(str_if_bytes(connection.password or ""))  # redis-py sends bytes and numbers, too

        def error_of(text: str) -> Exception:
            error = parse_error(text)
            if password:  # a refusal may repeat the command
                error.args = tuple(str(part).replace(password, "***") for part in error.args)
            return error

        parser = hiredis.Reader(replyError=error_of, protocolError=MalformedReply, notEnoughData=NOTHING)
        self._sock = connection._sock
        self._reader = ReplyReader(parser, TO_QUESTIONS)

    def on_disconnect(self) -> None:
        self._sock = self._reader = None

    def can_read(self, timeout: float = 0) -> bool:
        """Return False: an unexpected reply is found when the next one is read."""
        return False

    def read_response(self, disable_decoding: bool = False, **more: Any) -> Any:
        """Return the next reply.

        Raises:
            InvalidResponse: It is malformed.
            ConnectionError, OSError: The connection has ended.
        """
        reader, sock = self._reader, self._sock
        if reader is None or sock is None:
            raise ConnectionError("the connection is closed")
        fresh = True  # the previous reply was complete
        try:
            while (reply := reader.gets()) is NOTHING:
                if not reader.more(fresh):
                    data = sock.recv(self._read_size)
                    if not data:
                        raise HungUp("Connection closed by server.")
                    reader.feed(data)
                fresh = False
            _check_depth(reply)
        except (OSError, HungUp):
            raise
        except Exception as error:
            text = f"the server's reply is malformed: {as_malformed(error)}"
            raise InvalidResponse(text) from None
        if isinstance(reply, ConnectionError):
            raise reply
        return reply


def _check_depth(reply: object) -> None:
    """Raise MalformedReply if lists are nested deeper than in any answer: redis-py reads them recursively."""
    level = [reply]
    for _ in range(_MAX_DEPTH):
        level = [item for each in level if type(each) is list for item in each]
        if not level:
            return
    raise MalformedReply(f"lists in lists, more than {_MAX_DEPTH} deep")
