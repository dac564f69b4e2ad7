"""Reading a stream of RESP2 replies: hiredis parses it, after expensive or malformed replies have been rejected.

hiredis trusts every length. It allocates a list as soon as it has read the header of an array, buffers a text until it is
complete, and parses types of RESP3, of which it mishandles some. So each header that could be expensive is checked before
it is fed. hiredis itself shows where the headers are: all bytes before a candidate are fed and parsed; if none is left
over, the candidate is a header, else it belongs to a text or a line, which may hold any byte. (The first byte of a line is
never left over; but a header only comes after the end of a line.) Most chunks contain no candidate, or only headers of a
few short lists, and are fed unchanged.

A text of more than a MiB is skipped as it arrives, and not malformed: any user who may write a key, or publish on its
channel, can make it that long.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from wheel_lock.protocol.resp import MalformedReply

NOTHING = object()
"""Returned by a reader if no reply is complete."""

TOO_LONG = b"(too long)"
"""Returned in place of a text that is too long to be kept."""

_COMMON = frozenset([b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n"])  # the most common chunks
_PLAIN = b"+OK\r\n:-0123456789"  # chunks of these bytes alone contain no expensive header
# The header of a list with items, of a long text, or of a type of RESP3; or a possible beginning of one at the end.
_find_candidate = re.compile(rb"[*%~>|$](?:[1-9](?:(?<!\$.)|\d\d\d)|\d{0,3}\Z)", re.DOTALL).search
# The same without lists of less than ten items, for chunks that end with a line.
_find_long = re.compile(rb"[*%~>|$][1-9](?:(?<![*$].)|\d(?<!\$..)|\d\d\d)", re.DOTALL).search
_HEADER = re.compile(rb"[*$](\d{1,18})\r\n").match
_LONGEST_HEADER = 22
_LONGEST_TEXT = 1 << 20  # longer texts are skipped
_LONGEST_SKIPPED = 1 << 32  # longer texts are malformed: servers allow 512 MiB by default
_LONGEST_LINE = 1 << 16  # limit of a line; error texts of all servers are much shorter
_FEW = 256  # limit of unchecked short lists in one reply; each may be inside the one before
_ARRAY, _TEXT = b"*$"
_LAST = b"\n"[0]  # the last byte of every line


class Limits(NamedTuple):
    """Limits of one reply.

    Attributes:
        bytes: Its length, without skipped texts.
        arrays: The number of lists in it that are not empty, itself included; so it limits their depth, too.
        items: The number of items of all lists together.
    """

    bytes: int
    arrays: int
    items: int


# The longest reply is to a call about 5000 leases, each with its number and an error text of some hundred bytes.
TO_REQUESTS = Limits(bytes=4 << 20, arrays=8, items=1 << 14)

# The longest reply is a slot map in which each of the 16384 slots is a range of its own, with a dozen nodes.
TO_QUESTIONS = Limits(bytes=32 << 20, arrays=1 << 19, items=1 << 21)


def as_malformed(error: Exception) -> MalformedReply:
    """Return any exception of a parser as a MalformedReply."""
    return error if isinstance(error, MalformedReply) else MalformedReply(f"it cannot be read: {error!r:.200}")


def _next_header(text: bytes, start: int) -> int:
    """Return the position of the next candidate for a checked header from ``start`` on; the end if there is none."""
    found = _find_candidate(text, start)
    return len(text) if found is None else found.start()


class ReplyReader:
    """Feeds a hiredis reader with checked bytes.

    The caller feeds a chunk, takes replies from ``gets`` until it returns NOTHING, calls ``more``, and takes more of them
    as long as that returns True. Any exception of these three means that the stream is malformed.

    Args:
        reader: A ``hiredis.Reader``.
        limits: The limits of one reply.
    """

    __slots__ = (
        "_arrays",
        "_at",
        "_fed",
        "_items",
        "_limits",
        "_payload",
        "_reader",
        "_rest",
        "_short",
        "_since",
        "gets",
    )

    def __init__(self, reader: Any, limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self.gets: Any = reader.gets
        self._rest = b""  # received bytes ...
        self._at = 0  # ... that have not been fed from this position on
        self._payload = 0  # remaining bytes of a text; negative if it is skipped
        self._fed = _LAST  # the byte that was fed last
        self._since = self._arrays = self._items = self._short = 0  # fed since the last complete reply

    def feed(self, data: bytes) -> None:
        """Accept received bytes, after ``more`` has returned False."""
        if self._rest or self._payload:
            self._rest += data
            self._feed_more()
        elif (
            data in _COMMON or not data.translate(None, _PLAIN) or _find_candidate(data) is None or self._is_short(data)
        ):
            self._fed = data[-1]
            self._since += len(data)
            self._reader.feed(data)
        else:
            self._rest = data
            self._feed_more()

    def _is_short(self, data: bytes) -> bool:
        """Count the candidates in ``data``; return whether they are headers of a few short lists."""
        self._short += data.count(b"*")
        return self._short <= _FEW and data[-1] == _LAST and _find_long(data) is None

    def more(self, fresh: bool) -> bool:
        """Feed more after ``gets`` has returned NOTHING; return whether there may be more replies now.

        Args:
            fresh: True if a reply was complete since the last call.

        Raises:
            MalformedReply: The stream is malformed, or exceeds a limit.
        """
        if fresh:
            self._since = self._arrays = self._items = self._short = 0
        elif self._since > self._limits.bytes:
            raise MalformedReply(f"a reply of more than {self._limits.bytes} bytes")
        elif self._payload <= 0 and self._reader.len() > _LONGEST_LINE:
            raise MalformedReply(f"a line of more than {_LONGEST_LINE} bytes")
        return bool(self._rest) and self._feed_more()

    def _feed_more(self) -> bool:
        """Feed the next piece of the rest; return whether there was one."""
        text, start = self._rest, self._at
        if self._payload:
            end = min(start + abs(self._payload), len(text))
            if self._payload < 0:
                self._payload += end - start
                start = end
            else:
                self._payload -= end - start
                self._feed(start, end)
                return True
        end = _next_header(text, start)
        if end == start < len(text):
            if self._reader.has_data():
                end = _next_header(text, start + 1)
            else:
                header_end = self._header(start)
                if header_end is None:
                    return False
                if header_end == start:  # a skipped text: TOO_LONG has been fed instead
                    return True
                end = header_end if self._payload else _next_header(text, header_end)
        self._feed(start, end)
        return end > start

    def _feed(self, start: int, end: int) -> None:
        whole = not start and end == len(self._rest)
        piece = self._rest if whole else self._rest[start:end]
        if end == len(self._rest):
            self._rest, self._at = b"", 0
        else:
            self._at = end
        if piece:
            self._fed = piece[-1]
            self._since += len(piece)
            self._reader.feed(piece)

    def _header(self, start: int) -> int | None:
        """Check a header; return its end, ``start`` if it must not be fed, None if it is incomplete."""
        text = self._rest
        reply_type = text[start]
        if self._fed != _LAST:
            raise MalformedReply(f"{text[start : start + _LONGEST_HEADER]!r} in the place of a line or its end")
        if reply_type not in (_ARRAY, _TEXT):
            raise MalformedReply(f"a reply of the type {chr(reply_type)!a}")
        header = _HEADER(text, start)
        if header is None:
            if len(text) - start >= _LONGEST_HEADER or not b"\r\n".startswith(text[start + 1 :].lstrip(b"0123456789")):
                raise MalformedReply(f"{text[start : start + _LONGEST_HEADER]!r} is not a header")
            self._rest, self._at = text[start:], 0
            return None
        size, end = int(header[1]), header.end()
        if reply_type == _ARRAY:
            self._arrays += 1
            self._items += size
            if self._arrays > self._limits.arrays or self._items > self._limits.items:
                raise MalformedReply(f"a reply of {self._arrays} lists and {self._items} items")
        elif size <= _LONGEST_TEXT:
            self._payload = size + 2
        elif size <= _LONGEST_SKIPPED:
            self._payload = -size - 2
            self._at = end
            if end == len(text):
                self._rest, self._at = b"", 0
            self._fed = _LAST
            self._reader.feed(b"$%d\r\n%b\r\n" % (len(TOO_LONG), TOO_LONG))
            return start
        else:
            raise MalformedReply(f"a text of {size} bytes")
        return end
