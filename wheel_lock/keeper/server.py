"""A server that is asked to release what a dead client held: the calls, and the replies with a limit of their cost."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Generator, Hashable, Iterator
from typing import NamedTuple

from wheel_lock.keeper.crew import say
from wheel_lock.keeper.entries import Entry
from wheel_lock.keeper.tls import TlsConnection

_IN_FLIGHT = 4000  # entries whose calls have no reply
_SILENCE_S = 0.25  # without a byte, after which a server does not answer for now
_EXCHANGE_S = 5.0  # for all replies to so many entries, likewise
_MOST_BYTES = 1 << 20  # of a reply; the longest one of a release is some KB
_MOST_LINE = 1 << 16
LONG = 200  # characters of an error that is shown

RELEASED, REFUSED = "", "refused"  # answers; no address is the same

_ASKING = b"*1\r\n$6\r\nASKING\r\n"

Call = tuple[int, list[Entry]]
"""A call: the number of its script, and what it releases."""


class Broken(Exception):
    """The connection to a server has ended, or its reply is none."""


class Reply(NamedTuple):
    """A reply."""

    error: bytes  # its text; nothing if it is none
    elements: list[int | bytes]  # the numbers and texts of an array, also of arrays in it


def read_replies() -> Generator[Reply | None, bytes | None, None]:
    """Yield each reply, and None as long as it has not come to its end; it is sent what has been read.

    Raises:
        Broken: It is no reply, or too long.
        ValueError: A number is none.
    """
    data, at = bytearray(), 0
    while True:
        error: bytes | None = None
        elements: list[int | bytes] = []
        left, size = 1, 0  # elements, of arrays in arrays, too; and bytes
        while left:
            del data[:at]
            at = 0
            while (end := data.find(b"\r\n")) < 0:
                if len(data) > _MOST_LINE:
                    raise Broken("a reply is too long")
                data += (yield None) or b""
            kind, rest, at = bytes(data[:1]), bytes(data[1:end]), end + 2
            if kind not in (b"+", b"-", b":", b"$", b"*"):
                raise Broken("no reply")
            number = int(rest) if kind in (b"$", b"*") else -1
            size += end + max(number, 0)
            if size > _MOST_BYTES:
                raise Broken("a reply is too long")
            left -= 1
            if kind == b"*":
                left += max(number, 0)
            elif number >= 0:
                end, at = at + number, at + number + 2
                while len(data) < at:
                    data += (yield None) or b""
                elements.append(bytes(data[at - number - 2 : end]))
            elif error is not None:
                elements.append(int(rest) if kind == b":" else rest)
            if error is None:  # that of the reply, not of an element
                error = rest if kind == b"-" else b""
        yield Reply(error or b"", elements)


class Server:
    """A server, as a client has passed it."""

    def __init__(self, sock: socket.socket | TlsConnection, message: dict[str, object]) -> None:
        self.sock = sock
        scripts, names = message["scripts"], message["names"]
        assert isinstance(scripts, list)
        assert isinstance(names, list)
        self._scripts = [
            (script["sha1"], script["source"], script["keys"], script["arguments"], script["channel"].encode())
            for script in scripts
        ]
        self.names: list[str] = list(map(str, names))  # by which other nodes of its cluster name it
        self._most = int(str(message["most"]))
        self._replies = read_replies()
        self._why = ""  # that was said
        self._unsent = memoryview(b"")
        self._owed: deque[Call | None] = deque()  # the calls that have no reply, and None for each ASKING

    @property
    def place(self) -> Hashable:
        """Where it is: connections of several dead clients may be to the same one. None if it has closed this one."""
        try:
            return self.sock.getpeername()
        except OSError:
            return None

    def release(self, entries: list[Entry], *, asking: bool = False) -> dict[Entry, str]:
        """Release what the entries name, each only where its token is still the holder's.

        With ``asking`` also those are released whose slots are on their way to this server.

        Returns:
            For each entry that it has answered for, RELEASED, REFUSED, or the address of the server whose it is to
            release. If others are missing it does not answer now, and may do so the next time.

        Raises:
            Broken: There is no connection any more.
        """
        calls, answers = self._calls(entries), dict[Entry, str]()
        together = max(1, _IN_FLIGHT // max([len(some) for _, some in calls], default=1))
        ahead = _ASKING if asking else b""
        try:
            self._exchange({})  # what it has not answered before: it may have been stopped
            for at in range(0, len(calls), together):
                unknown = self._send(calls[at : at + together], ahead, set(), answers)
                if unknown:
                    self._send(unknown, ahead, {number for number, _ in unknown}, answers)
        except (OSError, ValueError) as error:
            if not isinstance(error, TimeoutError) or error.errno is not None:
                raise Broken(str(error)) from error
        return answers

    def _send(self, calls: list[Call], ahead: bytes, texts: set[int], answers: dict[Entry, str]) -> list[Call]:
        """Send calls, the first ones of the scripts ``texts`` with their texts; return those of unknown scripts."""
        data = []
        for call in calls:
            number, entries = call
            data += [ahead, self._call(number, entries, b"EVAL" if number in texts else b"EVALSHA")]
            self._owed += [None, call] if ahead else [call]
            texts.discard(number)
        self._unsent = memoryview(b"".join(data))
        return self._exchange(answers)

    def _exchange(self, answers: dict[Entry, str]) -> list[Call]:
        """Send what is to be sent, and read the replies that are due; return the calls of unknown scripts.

        Raises:
            TimeoutError: The server does not take, or answer, all of it for now. What is left is done the next time.
        """
        unknown, until = [], time.monotonic() + _EXCHANGE_S
        while self._unsent:
            self._limit(until)
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        while self._owed:
            reply = next(self._replies)
            while reply is None:
                self._limit(until)
                if not (data := self.sock.recv(1 << 16)):
                    raise Broken("the server closed the connection")
                reply = self._replies.send(data)
            if (call := self._owed.popleft()) is not None:
                if reply.error.startswith(b"NOSCRIPT"):
                    unknown.append(call)
                else:
                    self._note(call[1], reply, answers)
        return unknown

    def _limit(self, until: float) -> None:
        """Limit the next step on the socket: what a server answers is not waited for if it is silent, or slow at it."""
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.sock.settimeout(min(left_s, _SILENCE_S))

    def _note(self, entries: list[Entry], reply: Reply, answers: dict[Entry, str]) -> None:
        answers.update(dict.fromkeys(entries, self._answer(reply.error)))
        for number, text in zip(reply.elements[::2], reply.elements[1::2], strict=False):  # the script's exceptions
            if isinstance(number, int) and isinstance(text, bytes) and 0 < number <= len(entries):
                answers[entries[number - 1]] = self._answer(text)

    def _answer(self, error: bytes) -> str:
        if not error:
            return RELEASED
        words = error.decode("utf-8", "replace").split()
        if len(words) == 3 and words[0] in ("MOVED", "ASK"):
            host, _, port = words[2].rpartition(":")
            if host in ("", "?") and self.names:  # it does not know its own name, and means the same one
                host = self.names[0].rpartition(":")[0]
            return f"{host}:{port}"
        why, self._why = self._why, " ".join(words)[:LONG]
        if why != self._why:
            say(f"a server refuses: {self._why}")
        return REFUSED

    def _calls(self, entries: list[Entry]) -> list[Call]:
        calls: list[Call] = []
        for number in range(1, len(self._scripts) + 1):
            some = [entry for entry in entries if entry[0] == number]
            most = 1 if self._scripts[number - 1][2] else self._most
            calls += [(number, some[at : at + most]) for at in range(0, len(some), most)]
        return calls

    def _call(self, number: int, entries: list[Entry], verb: bytes) -> bytes:
        sha1, source, keys, arguments, channel = self._scripts[number - 1]
        bodies = [body for _, _, body in entries]
        if channel:
            bodies = [body + _bulk(b"%b{%b}" % (channel, next(_bulks(body)))) for body in bodies]
        body = b"".join(bodies)
        if keys:
            words = list(_bulks(body))
            body = b"".join(
                map(_bulk, [words[at] for at in keys] + [w for at, w in enumerate(words) if at not in keys])
            )
        head = b"*%d\r\n" % (3 + arguments * len(bodies))
        text = sha1 if verb == b"EVALSHA" else source
        return head + _bulk(verb) + _bulk(text.encode()) + _bulk(b"%d" % len(keys)) + body

    def close(self) -> None:
        self.sock.close()


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _bulks(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = data.index(b"\r\n", start)
        stop = end + 2 + int(data[start + 1 : end])
        yield data[end + 2 : stop]
        start = stop + 2
