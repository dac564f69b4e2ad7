"""System calls that keep the GIL do what the plain ones do, and keep it."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.waiting import eventually
from wheel_lock.runtime import held_calls
from wheel_lock.runtime.held_calls import receiver, sender
from wheel_lock.runtime.poller import EventWaker

MOST = 16_000


class OtherSocket(socket.socket):
    """One with methods of its own, as TLS has."""

    def send(self, data: object, flags: int = 0, /) -> int:
        return super().send(b"other " + bytes(data), flags)  # type: ignore[call-overload]

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        return b"other " + super().recv(size, flags)


@pytest.fixture(params=["held", "plain"], autouse=True)
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is made with these calls, and with the socket's own methods as on another system."""
    if request.param == "plain":
        monkeypatch.setattr(held_calls, "_send", None)


@pytest.fixture(params=["unix", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    if request.param == "unix":
        here, there = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            here = socket.create_connection(server.getsockname())
            there, _ = server.accept()
    here.setblocking(False)
    with here, there:
        yield here, there


def test_what_is_sent_arrives_and_what_arrives_is_received(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    send, receive = sender(here), receiver(here, MOST)
    for data in (b"x", b"\0" * 10, b"+OK\r\n" * 1000, b"y" * 70_000):
        sent = 0
        received = b""
        while sent < len(data):
            sent += send(data[sent:])
            received += there.recv(1 << 20)
        assert sent == len(data)
        while len(received) < len(data):
            received += there.recv(1 << 20)
        assert received == data
        back, left = b"", memoryview(data)
        there.setblocking(False)
        while len(back) < len(data):
            try:
                left = left[there.send(left) :] if left else left
                piece = receive()
            except BlockingIOError:
                continue
            assert len(piece) <= MOST
            back += piece
        there.setblocking(True)
        assert back == data


def test_a_piece_that_was_received_is_not_changed_by_the_next(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    receive = receiver(here, MOST)
    pieces: list[bytes] = []
    for data in (b"first", b"2nd"):
        there.send(data)
        eventually(lambda: pieces.append(receive()) or True)
    assert pieces == [b"first", b"2nd"]


def test_where_it_would_block_it_says_so(ends: tuple[socket.socket, socket.socket]) -> None:
    here, _ = ends
    send, receive = sender(here), receiver(here, MOST)
    with pytest.raises(BlockingIOError):
        receive()
    sent = 0

    def fill() -> None:
        nonlocal sent
        while True:
            sent += send(b"x" * 60_000)

    with pytest.raises(BlockingIOError):
        fill()
    assert sent


def test_the_end_of_the_stream_is_no_bytes(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.close()
    eventually(lambda: receiver(here, MOST)() == b"")


def test_a_broken_connection_raises_what_the_socket_raises(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.close()
    send = sender(here)

    def go_on() -> None:
        while True:
            send(b"x")
            time.sleep(0.001)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):  # and no signal ends the process
        go_on()


def test_a_closed_socket_raises_and_its_number_is_not_used(ends: tuple[socket.socket, socket.socket]) -> None:
    here, _ = ends
    send, receive = sender(here), receiver(here, MOST)
    fd = here.fileno()
    here.close()
    one, other = socket.socketpair()
    with one, other:
        assert fd in (one.fileno(), other.fileno())
        for call in (lambda: send(b"x"), receive):
            with pytest.raises(OSError, match="Bad file descriptor"):
                call()
        for end in (one, other):
            end.setblocking(False)
            with pytest.raises(BlockingIOError):
                end.recv(1)


def test_methods_that_a_socket_has_of_its_own_are_used() -> None:
    here, there = socket.socketpair()
    other = OtherSocket(fileno=here.detach())
    other.setblocking(False)
    with other, there:
        assert sender(other)(b"x") == len(b"other x")
        assert there.recv(100) == b"other x"
        there.send(b"y")
        assert receiver(other, MOST)() == b"other y"


@pytest.fixture
def waiting_thread() -> Iterator[Callable[[], int]]:
    """A thread that takes the GIL whenever another gives it away; how often it has had it."""
    turns, stop = [0], threading.Event()

    def take_turns() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=take_turns)
    thread.start()
    sys.setswitchinterval(1000.0)  # from here on it gets the GIL only from who gives it away
    yield lambda: turns[0]
    sys.setswitchinterval(before)
    stop.set()
    thread.join()


@pytest.mark.skipif(held_calls._send is None, reason="this system's calls are not held")
@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL")
def test_the_gil_is_kept(kept: None, waiting_thread: Callable[[], int], request: pytest.FixtureRequest) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    send, receive = sender(here), receiver(there, MOST)
    waker = EventWaker()
    wake = waker.wake
    with here, there:
        before = waiting_thread()
        for _ in range(2000):
            send(b"x")
            receive()
            wake()
        after = waiting_thread()
        held = held_calls._send is not None
        while not held and waiting_thread() == before:  # it does get it from the plain methods, sooner or later
            send(b"x")
            receive()
        assert not held or after == before
    waker.close()
