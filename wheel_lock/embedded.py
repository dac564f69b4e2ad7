"""fakeredis as a TCP server on loopback, for clients that have its password.

fakeredis implements AUTH, but runs commands of unauthenticated connections. So the first commands of a connection are read
here, by a parser that accepts short commands only, and none reaches fakeredis before one that carries the password.

Only `wheel_lock.testing` imports this module, because fakeredis is installed only with the extra ``demo``.
"""

from __future__ import annotations

import hmac
import math
import socket
import sys
import time
from socketserver import StreamRequestHandler
from typing import Any

import fakeredis
import redis

_LIMIT_S = 10.0  # for authentication, however many commands the client sends
_MOST_WORDS = 10
_LONGEST_WORD = 1024
_LONGEST_LINE = 32


class Server(fakeredis.TcpFakeServer):
    """A TCP server on a free port of 127.0.0.1 that passes only authenticated connections to fakeredis."""

    def __init__(self, password: str) -> None:
        self.password: bytes = password.encode()
        self._ends_at: dict[socket.socket, float] = {}  # by connection; infinite once it is authenticated
        super().__init__(("127.0.0.1", 0), server_type="redis")
        self.daemon_threads = True  # a program that does not close the server can end nevertheless
        self.fake_server.config[b"requirepass"] = self.password  # AUTH is answered by fakeredis
        self.RequestHandlerClass: Any = type("Handler", (_Handler, self.RequestHandlerClass), {})

    def process_request(self, request: Any, client_address: Any) -> None:
        self._ends_at[request] = time.monotonic() + _LIMIT_S
        super().process_request(request, client_address)

    def admit(self, request: socket.socket) -> None:
        """Let a connection live as long as the server."""
        self._ends_at[request] = math.inf

    def shutdown_request(self, request: Any) -> None:
        self._ends_at.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self._end_connections(time.monotonic())

    def shutdown(self) -> None:
        super().shutdown()
        self._end_connections(math.inf)

    def _end_connections(self, now: float) -> None:
        for connection, ends_at in list(self._ends_at.items()):
            if ends_at <= now:
                try:
                    connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end of the stream, and closes it
                except OSError:
                    pass  # closed already

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that has disconnected
            super().handle_error(request, client_address)


class _Handler(StreamRequestHandler):
    """A handler before that of fakeredis, to behave as a Redis server does."""

    # Small replies must not wait for an acknowledgement of the previous one (Nagle): that would show as renewal lag.
    disable_nagle_algorithm = True
    server: Server
    current_client: Any

    def setup(self) -> None:
        try:
            super().setup()
        except OSError:  # the client has disconnected; its files would stay open
            StreamRequestHandler.finish(self)
            raise
        read = self.current_client.read_response

        def read_or_error(*arguments: Any, **more: Any) -> Any:
            try:
                return read(*arguments, **more)
            except redis.ResponseError as error:
                return error  # sent as a reply; the connection stays open

        self.current_client.read_response = read_or_error

    def handle(self) -> None:
        self.connection.setblocking(True)  # fakeredis's setup has changed that
        words = self._first_words()
        self.connection.setblocking(False)
        self.server.admit(self.connection)
        command = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.current_client.get_socket().sendall(command)
        super().handle()

    def _first_words(self) -> list[bytes]:
        """Read commands until one authenticates the client, and return what fakeredis is to answer.

        The others are answered here. HELLO loses its AUTH, which some versions of fakeredis cannot execute.
        """
        while True:
            words = self._command()
            options = [word.upper() for word in words]
            name = options[0] if words else b""
            if name not in (b"AUTH", b"HELLO") or b"AUTH" not in options:
                self.wfile.write(b"-NOAUTH Authentication required.\r\n")
                continue
            at = options.index(b"AUTH") + 1
            *user, password = words[at : at + 2] or [b""]
            if name == b"HELLO" and words[1] not in (b"2", b"3"):
                self.wfile.write(b"-NOPROTO unsupported protocol version\r\n")
                continue
            named = user == [b"default"] or (name == b"AUTH" and not user)
            if named and hmac.compare_digest(password, self.server.password):
                return words if name == b"AUTH" else words[: at - 1] + words[at + 2 :]
            self.wfile.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")

    def _command(self) -> list[bytes]:
        return [self._word() for _ in range(self._number(b"*", _MOST_WORDS))]

    def _word(self) -> bytes:
        size = self._number(b"$", _LONGEST_WORD)
        return self.rfile.read(size + 2)[:size]

    def _number(self, kind: bytes, most: int) -> int:
        line = self.rfile.readline(_LONGEST_LINE)
        digits = line[1:-2]
        if line[:1] != kind or line[-2:] != b"\r\n" or not digits.isdigit() or int(digits) > most:
            raise ConnectionError("the connection has been closed, or is not used for short commands")
        return int(digits)
