"""Reads a server's replies to the keeper, with a limit of what one may cost."""

from __future__ import annotations

from typing import NamedTuple

_MOST_BYTES = 1 << 20  # of a reply; the longest one of a release is some KB
_MOST_LINE = 1 << 16


class Broken(Exception):
    """The connection to a server has ended, or its reply is none."""


class Reply(NamedTuple):
    """A reply.

    Attributes:
        error: The text of an error; nothing if it is none.
        elements: The numbers and texts of an array, also of arrays in it.
    """

    error: bytes
    elements: list[int | bytes]


class Replies:
    """The replies on one connection. It may be asked for one before all of it has come."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self._left = 1  # elements, of arrays in arrays, too
        self._skip = 0  # bytes of a string
        self._bytes = 0  # of this reply
        self._error: bytes | None = None
        self._text = bytearray()  # of a string
        self._elements: list[int | bytes] = []

    def feed(self, data: bytes) -> None:
        """Take what has been read."""
        self._data, self._at = self._data[self._at :] + data, 0

    def next(self) -> Reply | None:
        """Return the next reply; None if it has not come to its end.

        Raises:
            Broken: It is no reply, or too long.
            ValueError: A number is none.
        """
        while self._left or self._skip:
            if self._skip:
                some = min(self._skip, len(self._data) - self._at)
                self._text += self._data[self._at : self._at + some]
                self._at += some
                self._skip -= some
                if self._skip:
                    return None
                self._elements.append(bytes(self._text[:-2]))
                self._text.clear()
            if self._left:
                end = self._data.find(b"\r\n", self._at)
                if end < 0:
                    if len(self._data) - self._at > _MOST_LINE:
                        raise Broken("a reply is too long")
                    return None
                self._take(self._data[self._at : end])
                self._at = end + 2
        reply = Reply(self._error or b"", self._elements)
        self._begin()
        return reply

    def _take(self, line: bytes) -> None:
        kind, rest = line[:1], line[1:]
        number = int(rest) if kind in (b"$", b"*") else -1
        if kind not in (b"+", b"-", b":", b"$", b"*"):
            raise Broken("no reply")
        if self._error is None:  # that of the reply, not of an element
            self._error = rest if kind == b"-" else b""
        elif kind != b"*" and number < 0:
            self._elements.append(int(rest) if kind == b":" else rest)
        self._left -= 1
        self._bytes += len(line) + max(number, 0)
        if self._bytes > _MOST_BYTES:
            raise Broken("a reply is too long")
        if kind == b"*":
            self._left += max(number, 0)
        elif number >= 0:
            self._skip = number + 2
