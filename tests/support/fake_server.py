"""A server that answers as a test likes: what only a hostile one would say, or at a hostile pace."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import hiredis

from wheel_lock.protocol import scripts

OK = b"+OK\r\n"
_RELEASES = {str(scripts.RELEASE.form(level).sha1).encode() for level in range(3)}


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def array(*replies: bytes) -> bytes:
    """Encode an array of encoded replies."""
    return b"*%d\r\n%b" % (len(replies), b"".join(replies))


def acquires(words: list[bytes]) -> bool:
    """Whether a command is to acquire something, or to do it again."""
    asks = words[0] in (b"EVALSHA", b"EVAL") and len(words) > 3 and not any(b"probe" in word for word in words[2:])
    return words[0] == b"SET" or (asks and words[1] not in _RELEASES)


def honest(words: list[bytes]) -> bytes:
    """What a small server would say, and to nearly everything: yes."""
    verb = words[0].upper()
    if verb == b"PING":
        return b"+PONG\r\n"
    if verb == b"ROLE":
        return array(bulk(b"master"), b":0\r\n", array())
    if verb == b"SCRIPT":
        return bulk(b"0" * 40)
    if words[:2] == [b"CLUSTER", b"INFO"]:
        return bulk(b"cluster_state:ok\r\n")
    if verb == b"EVAL" and b"return 1" in words[1]:
        return b":1\r\n"
    if verb in (b"EVALSHA", b"EVAL"):
        # The others reply with what is wrong only: missing rights, leases that are not there.
        return b":1\r\n" if words[1] in _RELEASES else array()
    if verb in (b"SUBSCRIBE", b"SSUBSCRIBE"):
        return b"".join(array(bulk(verb.lower()), bulk(channel), b":1\r\n") for channel in words[1:])
    return OK


class FakeServer:
    """A server on loopback. Use it in a ``with``.

    Args:
        lie: Returns the reply to a command, encoded; None for what an honest server says.

    Attributes:
        port: Where it listens.
        asked: All commands that have come.
        connections: How many connections have been made.
        pause_s: How long each reply takes.
        piece: How many bytes of a reply are sent at a time, each after such a pause; None for all.
    """

    def __init__(self, lie: Callable[[list[bytes]], bytes | None] = lambda words: None) -> None:
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # it has been hung up on
                    outer._serve(self.request)

        self.lie = lie
        self.asked: list[list[bytes]] = []
        self.connections = 0
        self.pause_s = 0.0
        self.piece: int | None = None
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, client: socket.socket) -> None:
        self.connections += 1
        asked = hiredis.Reader()
        while data := client.recv(1 << 16):
            asked.feed(data)
            while (words := asked.gets()) is not False:
                self.asked.append(words)
                reply = self.lie(words)
                self._send(client, honest(words) if reply is None else reply)

    def _send(self, client: socket.socket, reply: bytes) -> None:
        piece = self.piece or len(reply)
        for start in range(0, len(reply), piece):
            if self.pause_s:
                time.sleep(self.pause_s)
            client.sendall(reply[start : start + piece])
