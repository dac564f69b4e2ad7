"""A proxy that routes by declared keys, as some managed services do: it refuses script calls that declare none."""

from __future__ import annotations

import socket
import threading
from typing import Self

import hiredis

from wheel_lock.protocol.resp import command

PROBE = b"wheel_lock:probe"
SCRIPT_CALLS = (b"EVAL", b"EVALSHA")


class KeyedProxy:
    """Stands before one server. Use it in a ``with``.

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
        self._server = port
        self._refusal = refusal
        self.refused = 0
        self.passed = 0
        self.refused_trials = 0
        self.strict = True
        self.needs_keys = True
        self.down: bytes | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One command after the other, so that no refusal overtakes an answer. (Nobody subscribes through it.)"""
        with client, socket.create_connection(("127.0.0.1", self._server)) as server:
            asked, answered = hiredis.Reader(), hiredis.Reader()
            try:
                while data := client.recv(1 << 16):
                    asked.feed(data)
                    while (words := asked.gets()) is not False:
                        client.sendall(self._answer(words, server, answered))
            except OSError:
                pass  # either side has gone

    def _answer(self, words: list[bytes], server: socket.socket, answered: hiredis.Reader) -> bytes:
        verb = words[0].upper()
        if verb in SCRIPT_CALLS and words[2] == b"0" and self.needs_keys:
            trial = b"return 1" in words[1] or any(word.startswith(PROBE) for word in words[3:])
            if trial and not self.strict:
                return self._pass_on(words, server, answered)
            self.refused += 1
            self.refused_trials += trial
            return b"-%b\r\n" % self._refusal
        if self.down is not None and any(word.startswith(self.down) for word in words):
            return b"-ERR no upstream host\r\n"
        self.passed += verb in SCRIPT_CALLS
        return self._pass_on(words, server, answered)

    def _pass_on(self, words: list[bytes], server: socket.socket, answered: hiredis.Reader) -> bytes:
        server.sendall(command(*words))
        received = b""
        while True:
            data = server.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            received += data
            answered.feed(data)
            if answered.gets() is not False:
                return received
