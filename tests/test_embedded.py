"""The embedded server passes no command to fakeredis before a client has sent the password."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable, embedded
from wheel_lock.testing import EmbeddedServer, fake_context

PATIENCE_S = 30.0
KEY = "written"


@pytest.fixture
def server(embedded_server: EmbeddedServer) -> EmbeddedServer:
    """One that is empty."""
    with embedded_server.client() as client:
        client.flushall()
    return embedded_server


def encoded(*words: str | bytes) -> bytes:
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


SET = encoded("SET", KEY, "value")


class Stranger:
    """A connection of which nothing is known, as bytes."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        self._file = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # the server has closed it already
            self._socket.sendall(data)

    def line(self) -> bytes:
        """The next line that the server says; nothing when the connection has ended."""
        try:
            return self._file.readline()
        except OSError:
            return b""

    def said(self, data: bytes) -> bytes:
        self.send(data)
        return self.line()

    def all_lines(self) -> list[bytes]:
        """What the server says until it ends the connection."""
        return list(iter(self.line, b""))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def stranger(server: EmbeddedServer) -> Iterator[Stranger]:
    with closing(Stranger(server)) as stranger:
        yield stranger


def assert_untouched(server: EmbeddedServer) -> None:
    with server.client() as client:
        assert client.dbsize() == 0


COMMANDS = [
    ("SET", KEY, "value"), ("EVAL", f"return redis.call('set', '{KEY}', 1)", "0"), ("PING",), ("INFO",), ("MULTI",),
    ("SUBSCRIBE", "c"), ("CONFIG", "SET", "requirepass", ""), ("ACL", "SETUSER", "default", "nopass"), ("RESET",),
    ("FUNCTION", "LOAD", "#!lua name=x\n"), ("SCRIPT", "LOAD", "return 1"), ("HELLO",),
    ("HELLO", "3", "SETNAME", "x"), ("CLIENT", "SETINFO", "LIB-NAME", "x"), ("SHUTDOWN",), (), ("",),
]  # fmt: skip


def test_nothing_runs_before_the_password(server: EmbeddedServer) -> None:
    for words in COMMANDS:
        with closing(Stranger(server)) as stranger:
            for _ in range(2):
                assert stranger.said(encoded(*words)) == b"-NOAUTH Authentication required.\r\n", words
    assert_untouched(server)


NO_COMMANDS = [
    f"SET {KEY} value\r\n".encode(),
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + SET,
    b"*11\r\n" + b"$1\r\na\r\n" * 11,
    b"*2\r\n$4\r\nAUTH\r\n$1025\r\n" + b"a" * 1025 + b"\r\n",
    b"*2\r\n$4\r\nAUTH\r\n$1000000000\r\n",
    *(b"*1000000000\r\n", b"*" + b"1" * 1000, b"*-1\r\n", b"*1\r\n*1\r\n", "*²\r\n".encode(), b"\0" * 1000),
    b"\x16\x03\x01",  # the start of TLS
]


def test_what_is_no_short_command_ends_the_connection(server: EmbeddedServer) -> None:
    for data in NO_COMMANDS:
        with closing(Stranger(server)) as stranger:
            stranger.send(data + SET)
            assert stranger.all_lines() == [], data
    assert_untouched(server)


def test_a_wrong_password_opens_nothing(server: EmbeddedServer, stranger: Stranger) -> None:
    right = server.password
    wrong = ["", right[:-1], right + "a", right.swapcase(), "\0" + right, right + "\0"]
    for password in wrong:
        assert stranger.said(encoded("AUTH", password)).startswith(b"-WRONGPASS ")
        assert stranger.said(encoded("AUTH", "default", password)).startswith(b"-WRONGPASS ")
        assert stranger.said(encoded("HELLO", "3", "AUTH", "default", password)).startswith(b"-WRONGPASS ")
        assert stranger.said(SET).startswith(b"-NOAUTH ")
    for words in [(), ("root", right), (right, "default"), ("a", "b", right)]:
        assert stranger.said(encoded("AUTH", *words)).startswith(b"-WRONGPASS ")
    assert stranger.said(encoded("SET", right)).startswith(b"-NOAUTH ")
    for options in [(), ("default",), ("root", right), (right, "default")]:
        assert stranger.said(encoded("HELLO", "3", "AUTH", *options)).startswith(b"-WRONGPASS ")
    assert stranger.said(SET).startswith(b"-NOAUTH ")
    assert_untouched(server)


def test_what_is_sent_along_with_the_password_runs(server: EmbeddedServer, stranger: Stranger) -> None:
    for byte in SET + encoded("AUTH", "default", server.password):  # which may come byte by byte
        stranger.send(bytes([byte]))
    stranger.send(SET + encoded("GET", KEY))
    said = [stranger.line() for _ in range(4)]
    assert said == [b"-NOAUTH Authentication required.\r\n", b"+OK\r\n", b"+OK\r\n", b"+value\r\n"]


def test_hello_with_the_password_selects_protocol_and_client_name(server: EmbeddedServer, stranger: Stranger) -> None:
    said = stranger.said(encoded("hello", "3", "auth", "default", server.password, "SETNAME", "me"))
    assert said.startswith(b"%")
    with server.client() as client:
        assert "me" in [entry["name"] for entry in client.client_list()]


def test_a_client_that_disconnects_is_not_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with EmbeddedServer() as server:
        for data in (b"", b"*1", SET, b"\0"):
            with closing(Stranger(server)) as stranger:
                stranger.send(data)
        eventually(lambda: not server._server._ends_at)
    assert capfd.readouterr() == ("", "")


def test_a_connection_that_says_nothing_is_ended(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LIMIT_S", 0.2)
    strangers = [Stranger(server) for _ in range(3)]
    strangers[1].send(b"*2\r\n$4\r\nAUTH\r\n$10\r\nabc")
    for stranger in strangers:
        assert stranger.all_lines() == []
        stranger.close()


def test_the_limit_is_for_getting_in_only() -> None:
    with EmbeddedServer() as server, server.client() as client:
        assert client.ping()
        assert list(server._server._ends_at.values()) == [math.inf]


def test_closing_the_server_ends_those_who_are_not_in_yet() -> None:
    server = EmbeddedServer()
    with closing(Stranger(server)) as stranger:
        eventually(lambda: len(server._server._ends_at) == 1)
        server.close()
        assert stranger.all_lines() == []
    eventually(lambda: not server._server._ends_at)


# Clients


def test_each_server_has_a_password_of_its_own(server: EmbeddedServer) -> None:
    with EmbeddedServer() as other:
        assert other.password != server.password
        assert len(other.password) >= 32
        retry = Retry(NoBackoff(), 0)
        with other.client(password=server.password, retry=retry) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


@pytest.mark.parametrize("protocol", [2, 3])
def test_clients_with_the_password_are_served(server: EmbeddedServer, protocol: int) -> None:
    with server.client(protocol=protocol, client_name="x") as client:
        assert client.set(KEY, "value")
        assert client.client_getname() in (b"x", "x")
        assert client.execute_command("AUTH", server.password)  # once more
    assert server.url == f"redis://:{server.password}@127.0.0.1:{server.port}/0"
    with redis.Redis.from_url(server.url, protocol=protocol) as client:
        assert client.get(KEY) == b"value"
    with redis.Redis(port=server.port, username="default", password=server.password, protocol=protocol) as client:
        assert client.get(KEY) == b"value"

    async def in_asyncio() -> None:
        async with redis.asyncio.Redis.from_url(server.url, protocol=protocol) as client:
            assert await client.get(KEY) == b"value"

    asyncio.run(in_asyncio())


def test_a_context_without_the_password_says_so(server: EmbeddedServer) -> None:
    with (
        LockContext(redis.Redis(port=server.port)) as context,
        pytest.raises(LockUnavailable, match=r"(?i)auth") as caught,
    ):
        context.lock("order:42").acquire()
    assert server.password not in str(caught.value)
    with fake_context() as context:
        assert context.server.password not in repr(context)
