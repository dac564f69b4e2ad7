"""RESP2: encoding of commands, and parsing of the replies of batched scripts.

hiredis parses the stream. A lease's name and token are encoded once, as ``lease_args``, which all its commands reuse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wheel_lock.protocol.server_errors import ServerError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Reply = object
"""A parsed reply: None, int, bytes, an exception for an error, or a list of replies."""


class MalformedReply(Exception):
    """A reply that is not one to the command: it is out of step, or not from a Redis server."""


def bulk_string(data: bytes) -> bytes:
    """Encode one argument.

    >>> bulk_string(b"key")
    b'$3\\r\\nkey\\r\\n'
    """
    return b"$%d\r\n%b\r\n" % (len(data), data)


def int_arg(value: int) -> bytes:
    """Encode an integer argument."""
    return bulk_string(b"%d" % value)


def command(*arguments: bytes) -> bytes:
    """Encode a whole command.

    >>> command(b"GET", b"key")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$3\\r\\nkey\\r\\n'
    """
    return b"*%d\r\n%b" % (len(arguments), b"".join(map(bulk_string, arguments)))


def lease_args(name: bytes, token: bytes) -> bytes:
    """Encode name and token, the two arguments of nearly every command of a lease."""
    return b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(token), token)


def split_bulk_strings(data: bytes) -> list[bytes]:
    """Return the arguments that a sequence of bulk strings encodes, such as the name and the token of ``lease_args``."""
    found, start = [], 0
    while start < len(data):
        end = data.index(b"\r\n", start)
        stop = end + 2 + int(data[start + 1 : end])
        found.append(data[end + 2 : stop])
        start = stop + 2
    return found


def each_lease_args(data: bytes) -> list[bytes]:
    """Return each of several :func:`lease_args` that are one behind the other."""
    found, start = [], 0
    while start < len(data):
        end = data.index(b"\r\n", start)
        middle = end + 4 + int(data[start + 1 : end])
        end = data.index(b"\r\n", middle)
        stop = end + 4 + int(data[middle + 1 : end])
        found.append(data[start:stop])
        start = stop
    return found


def name_in(data: bytes) -> bytes:
    """Return the name that :func:`lease_args` has encoded."""
    end = data.index(b"\r\n")
    return data[end + 2 : end + 2 + int(data[1:end])]


def name_arg(data: bytes) -> bytes:
    """Return the encoded name, the first of the two arguments that :func:`lease_args` has encoded."""
    end = data.index(b"\r\n")
    return data[: end + 4 + int(data[1:end])]


SET = b"*6\r\n$3\r\nSET\r\n"
IF_FREE = b"$2\r\nNX\r\n$2\r\nPX\r\n"


def set_if_free(lease_args: bytes, ttl: bytes) -> bytes:
    """Encode ``SET name token NX PX ttl``, the latter encoded: the same bytes that redis-py's Lock sends."""
    return SET + lease_args + IF_FREE + ttl  # faster than formatting


LONG_TEXT = 1000
"""The most characters that are shown of an error that is a whole message, or its cause."""


def error_text(error: object, most: int = 200) -> str:
    """Return a text that a server has sent (an error, a host name, a version) for messages, logs and terminals.

    It is one line of at most ``most`` printable ASCII characters, without the arguments of a command, which contain the
    token.

    >>> error_text("ERR unknown command 'SET', with args beginning with: 'a' 'secret'")
    "ERR unknown command 'SET'"
    >>> error_text("ERR \\x1b[2J\\u202eyou\\nwin")
    'ERR \\\\x1b[2J\\\\u202eyou win'
    """
    text = str(error).partition(", with args beginning with")[0][: most * 2]
    text = text.replace("\r", " ").replace("\n", " ").rstrip()
    if not (text.isascii() and text.isprintable()):
        text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.encode("ascii", "backslashreplace").decode())
    return text[:most]


GONE = 0
TAKEN = 1


def exceptions(reply: Reply, leases: int) -> Sequence[tuple[int, int | ServerError]]:
    """Check and parse the reply of a batched script: the leases for which it failed.

    Args:
        reply: A flat list of 1-based index and status.
        leases: The number of leases in the call.

    Returns:
        Pairs of 0-based index and GONE, TAKEN or the server's error, each index at most once.

    Raises:
        MalformedReply: Wrong type, odd length, an index out of range or named twice, an unknown status.
    """
    if type(reply) is not list:
        raise MalformedReply(f"expected a list of exceptions, got {type(reply).__name__}")
    if not reply:
        return ()
    if len(reply) % 2:
        raise MalformedReply(f"expected pairs, got {len(reply)} items")
    found: dict[int, int | ServerError] = {}
    for position in range(0, len(reply), 2):
        index, status = reply[position], reply[position + 1]
        if type(index) is not int or not 1 <= index <= leases or index - 1 in found:
            raise MalformedReply(f"index {index!r:.40} does not belong to a call about {leases} leases")
        if isinstance(status, bytes):
            found[index - 1] = ServerError(status.decode("utf-8", "backslashreplace"))
        elif isinstance(status, Exception):
            found[index - 1] = ServerError(str(status))
        elif type(status) is int and status in (GONE, TAKEN):
            found[index - 1] = status
        else:
            raise MalformedReply(f"status {status!r:.40} is not known")
    return tuple(found.items())
