"""Authentication of connections, before any byte of them reaches fakeredis.

fakeredis implements AUTH, but runs commands of unauthenticated connections. So the first commands of a connection are read
here, by a parser that accepts short commands only and leaves all later bytes in the socket.
"""

from __future__ import annotations

import hmac
import re
import socket
import time

_LIMIT_S = 10.0  # for authentication, however many commands the client sends
_MOST_WORDS = 10
_LONGEST_WORD = 1024
_LONGEST_LINE = 32
_NAME = re.compile(rb"[!-~]*")

_NO_AUTH = b"NOAUTH Authentication required."
_NO_AUTH_HELLO = (
    b"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> "
    b"option can be used to authenticate the client and select the RESP protocol version at the same time"
)
_WRONG = b"WRONGPASS invalid username-password pair or user is disabled."


class _Left(Exception):
    """The connection has been closed, exceeded the time limit, or violated the protocol."""


def admit(connection: socket.socket, password: str) -> bytes | None:
    """Read the first commands of a connection until one authenticates its client.

    Args:
        connection: A connection that has just been accepted; in blocking mode on return.
        password: The password of the user "default", the only one.

    Returns:
        A command that fakeredis answers first: empty after AUTH, else HELLO without its AUTH. None if the client is
        refused.
    """
    until = time.monotonic() + _LIMIT_S
    try:
        while True:
            words = _command(connection, until)
            reply, greeting = _answer(words, password.encode())
            if reply:
                connection.settimeout(max(until - time.monotonic(), 0.001))  # for a client that does not read
                connection.sendall(reply + b"\r\n")
            if greeting is not None:
                connection.settimeout(None)
                return greeting
    except (_Left, OSError):
        return None


def _answer(words: list[bytes], password: bytes) -> tuple[bytes, bytes | None]:
    """Return the reply to a command, and the first command for fakeredis if the client is admitted, else None."""
    name = words[0].upper() if words else b""
    if name == b"AUTH" and len(words) in (2, 3):
        user = words[1] if len(words) == 3 else b"default"
        return (b"+OK", b"") if _matches(user, words[-1], password) else (b"-" + _WRONG, None)
    if name == b"HELLO":
        return _hello(words, password)
    return b"-" + _NO_AUTH, None


def _hello(words: list[bytes], password: bytes) -> tuple[bytes, bytes | None]:
    if len(words) > 1 and words[1] not in (b"2", b"3"):
        return b"-NOPROTO unsupported protocol version", None
    kept, rest, authenticated = [b"HELLO", *words[1:2]], words[2:], False
    while rest:
        option = rest[0].upper()
        if option == b"AUTH" and len(rest) >= 3:
            if not _matches(rest[1], rest[2], password):
                return b"-" + _WRONG, None
            authenticated, rest = True, rest[3:]
        elif option == b"SETNAME" and len(rest) >= 2 and _NAME.fullmatch(rest[1]):
            kept, rest = [*kept, b"SETNAME", rest[1]], rest[2:]
        else:
            return b"-ERR Syntax error in HELLO", None
    if not authenticated:
        return b"-" + _NO_AUTH_HELLO, None
    return b"", b"*%d\r\n" % len(kept) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in kept)


def _matches(user: bytes, given: bytes, password: bytes) -> bool:
    return hmac.compare_digest(given, password) and user == b"default"


def _command(connection: socket.socket, until: float) -> list[bytes]:
    # Bytes are peeked at first, then received: one call per byte would release the interpreter each time.
    data = b""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise _Left
        connection.settimeout(left)
        seen = connection.recv(4096, socket.MSG_PEEK)
        if not seen:
            raise _Left
        words, size = _parsed(data + seen)
        taken = connection.recv(len(seen) if words is None else size - len(data))
        data += taken
        if words is not None:
            return words


def _parsed(data: bytes) -> tuple[list[bytes] | None, int]:
    """Return the words of the command at the start of ``data``, None if it is incomplete, and the position of its end."""
    count, at = _number(data, 0, b"*", _MOST_WORDS)
    words: list[bytes] = []
    while count is not None and len(words) < count:
        length, at = _number(data, at, b"$", _LONGEST_WORD)
        if length is None or len(data) < at + length + 2:
            return None, at
        words.append(data[at : at + length])
        at += length + 2
    return (None if count is None else words), at


def _number(data: bytes, at: int, kind: bytes, most: int) -> tuple[int | None, int]:
    """Return the number in the line at position ``at``, None if the line is incomplete, and the start of the next one."""
    end = data.find(b"\r\n", at, at + _LONGEST_LINE)
    if data[at : at + 1] not in (b"", kind) or (end < 0 and len(data) - at >= _LONGEST_LINE):
        raise _Left
    if end < 0:
        return None, at
    digits = data[at + 1 : end]
    if not digits.isdigit() or int(digits) > most:
        raise _Left
    return int(digits), end + 2
