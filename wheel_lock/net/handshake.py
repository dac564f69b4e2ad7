"""The limits of what redis-py sends and reads: time, bytes, and the form of replies.

redis-py sends a few commands before a connection is handed over, and all commands to Sentinels and for slot maps. Its own
parsers trust every length, and buffer without a limit. It limits each step, and within a step each read, separately, so a
server that always sends the next piece just in time could block an attempt for ever. So all waits for the server are
subtracted from one allowance. It is several times the limit of a step, because an attempt takes a dozen round trips. Time
that is spent elsewhere, such as in the user's credential provider, does not count.
"""

from __future__ import annotations

import time
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


class Allowance:
    """The remaining time and bytes of one attempt to connect. ``step_s`` limits one step, four times that all waits."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.left_s: float = step_s * _STEPS
        self._left_bytes = _MOST_BYTES

    def limit(self, sock: Any, step_s: float | None) -> None:
        """Limit the next wait on ``sock`` to ``step_s``, or the time that is left. Raises TimeoutError if none is left."""
        if self.left_s <= 0.0:
            raise TimeoutError("the server has taken too long in all")
        sock.settimeout(self.left_s if step_s is None else min(step_s, self.left_s))

    def wait(self, sock: Any, step_s: float | None, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Return what ``call`` returns, which waits on ``sock`` for the server."""
        self.limit(sock, step_s)
        began = time.monotonic()
        try:
            return call(*arguments, **options)
        finally:
            self.left_s -= time.monotonic() - began

    def take(self, size: int) -> None:
        """Subtract the number of received bytes. Raises OSError if it exceeds the limit."""
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise OSError(f"the server has sent more than {_MOST_BYTES} bytes")


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
        self._connection = connection
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
                    data = connection.wheel_lock_wait(connection._sock.recv, self._read_size)
                    if not data:
                        raise HungUp("Connection closed by server.")
                    connection.wheel_lock_allowance.take(len(data))
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
    """The mix-in that limits a connection class. Its names are unlike those of users' classes.

    Attributes:
        wheel_lock_login: The arguments of AUTH that it has sent last, if any.
    """

    wheel_lock_login: Sequence[str | bytes] = ()

    def __init__(self, *, wheel_lock_allowance: Allowance, **settings: Any) -> None:
        self.wheel_lock_allowance = wheel_lock_allowance
        self._wheel_lock_began = 0.0
        super().__init__(**settings)

    def _connect(self) -> Any:
        self._wheel_lock_began = time.monotonic()
        sock = super()._connect()  # type: ignore[safe-super, no-untyped-call]
        self._wheel_lock_spend()
        return sock

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        self._wheel_lock_spend()
        self.wheel_lock_allowance.limit(sock, sock.gettimeout())
        return super()._wrap_socket_with_ssl(sock)  # type: ignore[misc]  # classes for TLS have it

    def _wheel_lock_spend(self) -> None:
        """Subtract the time since the last call, without that of silent addresses.

        A host name may have several addresses, which are tried one after the other, each for the whole limit of a step.
        """
        allowance, now = self.wheel_lock_allowance, time.monotonic()
        address_s: float = getattr(self, "socket_connect_timeout", None) or allowance.step_s
        allowance.left_s -= (now - self._wheel_lock_began) % address_s
        self._wheel_lock_began = now

    def wheel_lock_wait(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return self.wheel_lock_allowance.wait(self._sock, self.socket_timeout, call, *arguments, **options)

    def send_command(self, *arguments: Any, **options: Any) -> None:
        if arguments[0] == "AUTH":
            self.wheel_lock_login = arguments[1:]
        own: Any = super()
        own.send_command(*arguments, **options)

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        self.wheel_lock_wait(super().send_packed_command, *arguments, **options)


def limited(connection_class: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return a subclass of ``connection_class`` with the additional argument ``wheel_lock_allowance``."""
    return type(connection_class.__name__, (_Limited, connection_class), {"__module__": connection_class.__module__})
