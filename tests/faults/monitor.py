"""What the server said: who held which lock from when to when, read from its own MONITOR feed.

A fenced acquire that is granted sets the fence and then the key, or prolongs that if an earlier try was granted; a
renewal's PEXPIRE and a release's DEL appear only where the script found the token to match. MONITOR tells the time of
each command by the server's wall clock.
"""

from __future__ import annotations

import itertools
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from tests.faults.checker import Tenure
from tests.faults.server_log import Called
from tests.support.redis_server import RedisServer
from wheel_lock.protocol.keys import fence_key

_LINE = re.compile(rb"\+(\d+\.\d+) \[\d+ ([^\]]+)\] (.*)")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Monitor:
    """Records all commands that a server runs. Use it in a `with`; then ask for the tenures."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._lines: list[bytes] = []
        self._end = secrets.token_hex().encode()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5, socket.MSG_WAITALL) == b"+OK\r\n"
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # All that the server has run before this is read first: what is left in the socket would be missing at the end.
        self._server.client().echo(self._end)
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                self._lines.append(line)
                if self._end in line:
                    return

    def calls(self) -> Iterator[Called]:
        """All commands in order, on CLOCK_MONOTONIC. Their words must be plain text."""
        shift = time.monotonic() - time.time()
        for line in self._lines:
            match = _LINE.match(line)
            if match is not None:
                stamp, client, rest = match.groups()
                yield Called(float(stamp) + shift, client == b"lua", tuple(_WORD.findall(rest)))

    def tenures(self, names: list[str]) -> list[Tenure]:
        """All tenures of these fenced locks, on CLOCK_MONOTONIC. Their names must be plain text."""
        fences = {fence_key(name.encode()): name for name in names}
        ended: list[Tenure] = []
        # A tenure for each fence that was drawn under the holder's token: where the connection of an acquire was replaced,
        # both its tries may arrive, in either order, and the holder has the fence of one of them.
        current: dict[str, list[Tenure]] = {}
        drawn: dict[str, str] = {}
        called_at = 0.0
        for at, of_script, words in self.calls():
            if not of_script:
                called_at = at  # an expiry counts from the beginning of the script
                continue
            verb = words[0].lower()
            name = words[1].decode() if len(words) > 1 else ""
            if verb == b"set" and words[1] in fences:
                drawn[fences[words[1]]] = words[2].decode()  # the grant comes next
            elif verb == b"set" and name in names:
                ended += current.pop(name, [])
                current[name] = [Tenure(name, drawn.pop(name), called_at, called_at + int(words[4]) / 1000)]
            elif verb == b"pexpire" and name in current:
                until = max(
                    current[name][0].until, called_at + int(words[2]) / 1000
                )  # no script shortens an expiry here
                if name in drawn:
                    current[name].append(Tenure(name, drawn.pop(name), called_at, until))
                current[name] = [tenure._replace(until=until) for tenure in current[name]]
            elif verb == b"del" and name in current:
                ended += [tenure._replace(until=at) for tenure in current.pop(name)]
        return [*ended, *itertools.chain.from_iterable(current.values())]
