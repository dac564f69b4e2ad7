"""A proxy that routes by declared keys, as some managed services do: it refuses script calls that declare none."""

from __future__ import annotations

import socket
import threading

import hiredis

from tests.support.fake_server import FakeServer
from wheel_lock.protocol.resp import command

PROBE = b"wheel_lock:probe"
SCRIPT_CALLS = (b"EVAL", b"EVALSHA")


class KeyedProxy(FakeServer):
    """Stands before one server. Use it in a ``with``. (It does not support subscriptions.)

    Args:
        port: The server's.
        refusal: What is said to a call without keys.

    Attributes:
        refused: How many calls were refused.
        refused_trials: How many of these only tried what the service takes, as each connection does when it is made.
        passed: How many script calls were passed on.
        needs_keys: Whether it refuses anything.
        strict: Whether it refuses also what a connection begins with: scripts that touch no key, or one that is not there.
        down: How the names begin that live on a shard which is down; None where all are well.
    """

    def __init__(self, port: int, refusal: bytes) -> None:
        super().__init__(self._answer)
        self._behind_port = port
        self._behind = threading.local()  # each connection is served by a thread
        self._refusal = refusal
        self.refused = 0
        self.passed = 0
        self.refused_trials = 0
        self.strict = True
        self.needs_keys = True
        self.down: bytes | None = None

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._behind_port)) as self._behind.server:
            super()._serve(client)

    def _answer(self, words: list[bytes]) -> bytes:
        verb = words[0].upper()
        if verb in SCRIPT_CALLS and words[2] == b"0" and self.needs_keys:
            trial = b"return 1" in words[1] or any(word.startswith(PROBE) for word in words[3:])
            if trial and not self.strict:
                return self._pass_on(words)
            self.refused += 1
            self.refused_trials += trial
            return b"-%b\r\n" % self._refusal
        if self.down is not None and any(word.startswith(self.down) for word in words):
            return b"-ERR no upstream host\r\n"
        self.passed += verb in SCRIPT_CALLS
        return self._pass_on(words)

    def _pass_on(self, words: list[bytes]) -> bytes:
        server: socket.socket = self._behind.server
        server.sendall(command(*words))
        answered, received = hiredis.Reader(), b""
        while data := server.recv(1 << 16):
            received += data
            answered.feed(data)
            if answered.gets() is not False:
                return received
        raise ConnectionResetError
