"""fakeredis's TCP server on loopback, with a password."""

from __future__ import annotations

import socket
from socketserver import StreamRequestHandler
from typing import Any

import fakeredis
import redis

from wheel_lock.embedded import sandbox
from wheel_lock.embedded.admission import admit


class Server(fakeredis.TcpFakeServer):
    """A TCP server on a free port of 127.0.0.1 that passes only authenticated connections to fakeredis.

    Raises:
        RuntimeError: This version of fakeredis cannot be restricted: its scripts could run Python.
    """

    def __init__(self, password: str) -> None:
        self._password = password
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), server_type="redis")
        self.daemon_threads = True  # a program that does not close the server can end nevertheless
        self.fake_server.config[b"requirepass"] = password.encode()  # for clients that send AUTH again
        self.RequestHandlerClass: Any = _handler(self.RequestHandlerClass)
        try:
            self._check()
        except BaseException:
            self.server_close()
            raise

    def _check(self) -> None:
        with fakeredis.FakeRedis(server=self.fake_server, protocol=2) as client:
            connection = client.connection_pool.get_connection()
            _close(connection)
            sandbox.check(connection.get_socket())
            client.connection_pool.release(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        greeting = admit(request, self._password)
        if greeting is not None:
            self.RequestHandlerClass(request, client_address, self, greeting)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def shutdown(self) -> None:
        super().shutdown()
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end of the stream, and closes it
            except OSError:
                pass  # closed already


def _close(connection: Any) -> None:
    """Make a connection of fakeredis open only restricted sockets."""
    connection.disconnect()
    opened = connection._connect

    def connect() -> Any:
        sock = opened()
        sandbox.close(sock)
        return sock

    connection._connect = connect


def _handler(fakes: Any) -> Any:
    """Return a subclass of fakeredis's request handler that behaves as a Redis server does."""

    class Handler(fakes):  # type: ignore[misc]
        # Small replies must not wait for an acknowledgement of the previous one (Nagle): that would show as renewal lag.
        disable_nagle_algorithm = True

        def __init__(self, request: Any, client_address: Any, server: Any, greeting: bytes) -> None:
            self._greeting = greeting
            super().__init__(request, client_address, server)

        def setup(self) -> None:
            try:
                super().setup()
            except OSError:  # the client has disconnected; its files would stay open
                StreamRequestHandler.finish(self)
                raise
            _close(self.current_client)
            read = self.current_client.read_response

            def read_or_error(*arguments: Any, **more: Any) -> Any:
                try:
                    return read(*arguments, **more)
                except redis.ResponseError as error:
                    return error  # sent as a reply; the connection stays open

            self.current_client.read_response = read_or_error

        def handle(self) -> None:
            if self._greeting:
                self.current_client.get_socket().sendall(self._greeting)
            super().handle()

    return Handler
