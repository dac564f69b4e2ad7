"""The limits of what redis-py sends and reads: time, bytes, and the form of replies.

redis-py sends a few commands before a connection is handed over, and all commands to Sentinels and for slot maps. Its own
parsers trust every length, and buffer without a limit. It limits each step, and within a step each read, separately, so a
server that always sends the next piece just in time could block an attempt for ever. So all waits for the server are
subtracted from one allowance. It is several times the limit of a step, because an attempt takes a dozen round trips. Time
that is spent elsewhere, such as in the user's credential provider, does not count.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import hiredis
from redis._parsers import BaseParser
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError, InvalidResponse
from redis.utils import str_if_bytes

from wheel_lock.protocol.reply_reader import NOTHING, TO_QUESTIONS, ReplyReader, as_malformed
from wheel_lock.protocol.resp import MalformedReply

T = TypeVar("T")

# The largest legitimate answer is the slot map of a cluster in which each slot is a range of its own, with a dozen nodes.
_MOST_BYTES = 32 << 20
_MAX_DEPTH = 8  # limit for nested lists
_STEPS = 4  # total time, as a multiple of the limit of one step


class HungUp(ConnectionError):
    """The server has closed the connection."""


class HandshakeParser(BaseParser):  # type: ignore[misc, unused-ignore]
    """The parser of limited connections, which reads ``socket_read_size`` bytes at once, or 64 KiB if that is more."""

    def __init__(self, socket_read_size: int) -> None:
        self._read_size = max(socket_read_size, 1 << 16)
        self._connection: Any = None
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
        self._connection = weakref.proxy(connection)  # which has the parser: a cycle
        self._reader = ReplyReader(parser, TO_QUESTIONS)

    def on_disconnect(self) -> None:
        self._connection = self._reader = None

    def can_read(self, timeout: float = 0) -> bool:
        """Return False: an unexpected reply is found when the next one is read."""
        return False

    def read_response(self, disable_decoding: bool = False, **more: Any) -> Any:
        """Return the next reply.

        Raises:
            InvalidResponse: It is malformed.
            ConnectionError, OSError: The connection has ended.
        """
        reader, connection = self._reader, self._connection
        if reader is None:
            raise ConnectionError("the connection is closed")
        fresh = True  # the previous reply was complete
        try:
            while (reply := reader.gets()) is NOTHING:
                if not reader.more(fresh):
                    data = connection.wheel_lock_receive(self._read_size)
                    if not data:
                        raise HungUp("Connection closed by server.")
                    reader.feed(data)
                fresh = False
            _check_depth(reply)
        except (OSError, HungUp):
            raise
        except Exception as error:  # also of redis-py about an error reply: a MOVED without a port, for example
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


class _Limited(AbstractConnection):
    """The mix-in that limits a connection class, ``step_s`` for one step and four times that for all waits.

    Attributes:
        wheel_lock_left_s: The time that is left.
        wheel_lock_login: The arguments of AUTH that it has sent last, if any.
    """

    wheel_lock_login: Sequence[str | bytes] = ()

    def __init__(self, *, wheel_lock_step_s: float, **settings: Any) -> None:
        self._wheel_lock_step_s = wheel_lock_step_s
        self.wheel_lock_left_s = wheel_lock_step_s * _STEPS
        self._wheel_lock_left_bytes = _MOST_BYTES
        self._wheel_lock_began = 0.0
        super().__init__(**settings)

    def _connect(self) -> Any:
        self._wheel_lock_began = time.monotonic()
        sock = super()._connect()  # type: ignore[safe-super, no-untyped-call]
        self._wheel_lock_spend()
        return sock

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        self._wheel_lock_spend()
        self._wheel_lock_limit(sock, sock.gettimeout())
        return super()._wrap_socket_with_ssl(sock)  # type: ignore[misc]  # classes for TLS have it

    def _wheel_lock_spend(self) -> None:
        """Subtract the time since the last call, without that of silent addresses.

        A host name may have several addresses, which are tried one after the other, each for the whole limit of a step.
        """
        now = time.monotonic()
        address_s: float = getattr(self, "socket_connect_timeout", None) or self._wheel_lock_step_s
        self.wheel_lock_left_s -= (now - self._wheel_lock_began) % address_s
        self._wheel_lock_began = now

    def _wheel_lock_limit(self, sock: Any, step_s: float | None) -> None:
        if self.wheel_lock_left_s <= 0.0:
            raise TimeoutError("the server has taken too long in all")
        sock.settimeout(self.wheel_lock_left_s if step_s is None else min(step_s, self.wheel_lock_left_s))

    def _wheel_lock_wait(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Return what ``call`` returns, which waits for the server."""
        self._wheel_lock_limit(self._sock, self.socket_timeout)
        began = time.monotonic()
        try:
            return call(*arguments, **options)
        finally:
            self.wheel_lock_left_s -= time.monotonic() - began

    def wheel_lock_receive(self, size: int) -> bytes:
        """Return at most ``size`` bytes that the server sends. Raises OSError after too much time, or too many bytes."""
        sock: Any = self._sock
        data: bytes = self._wheel_lock_wait(sock.recv, size)
        self._wheel_lock_left_bytes -= len(data)
        if self._wheel_lock_left_bytes < 0:
            raise OSError(f"the server has sent more than {_MOST_BYTES} bytes")
        return data

    def send_command(self, *arguments: Any, **options: Any) -> None:
        if arguments[0] == "AUTH":
            self.wheel_lock_login = arguments[1:]
        own: Any = super()
        own.send_command(*arguments, **options)

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        self._wheel_lock_wait(super().send_packed_command, *arguments, **options)


def limited(connection_class: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return a subclass of ``connection_class`` with the additional argument ``wheel_lock_step_s``."""
    return type(connection_class.__name__, (_Limited, connection_class), {"__module__": connection_class.__module__})
