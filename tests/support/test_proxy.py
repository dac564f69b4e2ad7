"""The proxy does to a connection what it is asked to, against an echo server and against a real Redis."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually


class EchoServer:
    """Sends back what it gets; remembers it; says how many of its connections were reset."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.got = bytearray()
        self.resets = 0
        self.closed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.got += data
                    connection.sendall(data)
                self.closed += 1
            except ConnectionError:
                self.resets += 1


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def echo_proxy(echo: EchoServer) -> Iterator[TcpProxy]:
    with TcpProxy(echo.port) as proxy:
        yield proxy


def connect(proxy: TcpProxy, timeout_s: float = 5.0) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=timeout_s)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = client.recv(count - len(data))
        if not piece:
            break
        data += piece
    return data


def exchange(client: socket.socket, data: bytes) -> None:
    """Send something, and get it back."""
    client.sendall(data)
    assert receive(client, len(data)) == data


def assert_silent(client: socket.socket, for_s: float = 0.05) -> None:
    client.settimeout(for_s)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(5.0)


def test_bytes_pass_unchanged_and_are_logged(echo_proxy: TcpProxy) -> None:
    before = time.monotonic()
    payload = bytes(range(256)) * 4096
    with connect(echo_proxy) as client:
        threading.Thread(target=client.sendall, args=(payload,)).start()
        assert receive(client, len(payload)) == payload
        assert echo_proxy.connections == 1
    eventually(lambda: echo_proxy.connections == 0)
    assert echo_proxy.seen("to_server") == payload
    assert echo_proxy.seen("to_client") == payload
    times = [entry.time for entry in echo_proxy.log]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.monotonic()


def test_a_delay_holds_for_one_direction(echo: EchoServer, echo_proxy: TcpProxy) -> None:
    with connect(echo_proxy) as client:
        echo_proxy.to_client.delay_s = math.inf
        started = time.monotonic()
        client.sendall(b"x")
        eventually(lambda: bytes(echo.got) == b"x")
        echo_proxy.to_client.delay_s = 0.1  # counted from when the reply came, not from now
        assert receive(client, 1) == b"x"
        assert time.monotonic() - started >= 0.1


def test_bytes_held_back_arrive_on_heal_in_order(echo: EchoServer, echo_proxy: TcpProxy) -> None:
    echo_proxy.to_server.delay_s = math.inf
    with connect(echo_proxy) as client:
        client.sendall(b"late")
        assert_silent(client)
        assert not echo.got
        assert echo_proxy.seen("to_server") == b"late"
        echo_proxy.heal()
        assert receive(client, 4) == b"late"
        echo_proxy.to_server.jitter_s = echo_proxy.to_client.jitter_s = 0.01
        for number in range(50):
            client.sendall(b"%03d" % number)
        assert receive(client, 150) == b"".join(b"%03d" % number for number in range(50))
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 1) == b""
    eventually(lambda: echo.closed == 1)
    assert echo.resets == 0


def test_a_black_hole_keeps_the_connection_and_swallows_both_ways(echo: EchoServer, echo_proxy: TcpProxy) -> None:
    with connect(echo_proxy) as client, connect(echo_proxy) as gone, connect(echo_proxy) as idle:
        for each in (client, gone, idle):
            exchange(each, b"a")
        echo_proxy.blackhole()
        client.sendall(b"b")
        gone.close()
        assert_silent(client)
        assert bytes(echo.got) == b"aaa"
        assert echo.closed == echo.resets == 0, "the server does not hear that the other side went away"
        echo_proxy.heal()
        with pytest.raises(ConnectionResetError):  # a byte of this connection is lost, so it cannot go on
            client.recv(1)
        exchange(idle, b"c")  # it has lost nothing
    eventually(lambda: echo.resets == 2)
    with connect(echo_proxy) as client:
        exchange(client, b"d")


def test_dropped_replies_leave_the_request_executed(redis_server: RedisServer) -> None:
    with TcpProxy(redis_server.port) as proxy, connect(proxy) as client:
        client.sendall(b"PING\r\n")
        assert receive(client, 7) == b"+PONG\r\n"
        proxy.drop_replies()
        client.sendall(b"SET key value\r\n")
        assert_silent(client)
        assert redis_server.client().get("key") == b"value"
        assert proxy.seen("to_client") == b"+PONG\r\n+OK\r\n"


def test_cut_resets_both_ends(echo: EchoServer, echo_proxy: TcpProxy) -> None:
    with connect(echo_proxy) as one, connect(echo_proxy) as two:
        for client in (one, two):
            exchange(client, b"x")
        echo_proxy.cut()
        assert echo_proxy.connections == 0
        for client in (one, two):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    eventually(lambda: echo.resets == 2)


@pytest.mark.parametrize("count", [0, 5])
def test_cut_after_bytes_of_a_reply(echo: EchoServer, echo_proxy: TcpProxy, count: int) -> None:
    with connect(echo_proxy) as client:
        exchange(client, b"before")
        echo_proxy.cut_after_bytes(count, "to_client")
        client.sendall(b"0123456789")
        assert receive(client, count) == b"0123456789"[:count]
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    eventually(lambda: echo.resets == 1)
    with connect(echo_proxy) as client:  # it happens once
        exchange(client, b"0123456789")


@pytest.mark.parametrize("count", [0, 5])
def test_cut_after_bytes_of_a_request(echo: EchoServer, echo_proxy: TcpProxy, count: int) -> None:
    echo_proxy.cut_after_bytes(count, "to_server")
    with connect(echo_proxy) as client:
        client.sendall(b"0123456789")
        eventually(lambda: echo.resets == 1)
    assert bytes(echo.got) == b"0123456789"[:count]


def test_refuse_turns_new_connections_away_and_heal_lets_them_in(echo_proxy: TcpProxy) -> None:
    with connect(echo_proxy) as client:
        exchange(client, b"a")
        echo_proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(echo_proxy)
        exchange(client, b"b")
    echo_proxy.heal()
    with connect(echo_proxy) as client:
        exchange(client, b"c")


def test_a_server_that_is_not_there_resets_the_client(fresh_redis: RedisServer) -> None:
    with TcpProxy(fresh_redis.port) as proxy:
        fresh_redis.stop()
        with pytest.raises(ConnectionResetError), connect(proxy) as client:  # by the first read at the latest
            client.recv(1)
        fresh_redis.start()
        with connect(proxy) as client:
            client.sendall(b"PING\r\n")
            assert receive(client, 7) == b"+PONG\r\n"


def test_close_ends_the_thread_and_the_connections(echo: EchoServer) -> None:
    with TcpProxy(echo.port) as proxy:
        client = connect(proxy)
        exchange(client, b"a")
    with client, pytest.raises(ConnectionResetError):
        client.recv(1)
    assert "tcp-proxy" not in [thread.name for thread in threading.enumerate()]
    proxy.close()
