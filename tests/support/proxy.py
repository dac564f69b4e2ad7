"""A TCP proxy on loopback whose network can be made to fail while a test runs. One thread serves it all.

It models what TCP can do to two peers: bytes are late, or the connection is reset.
"""

from __future__ import annotations

import queue
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum
from typing import Literal, NamedTuple, Self

from tests.support.ports import candidate_port

Direction = Literal["to_server", "to_client"]

_READ_SIZE = 1 << 18
# More than this on its way stops the reading, as a full TCP window would: a sender must notice a stuck peer.
_MAX_IN_FLIGHT = 4 << 20
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class LogEntry(NamedTuple):
    """Bytes as they reached the proxy, whatever became of them after. time is time.monotonic()."""

    time: float
    connection: int
    direction: Direction
    data: bytes


class Faults:
    """What happens to the bytes of one direction. The delays may be set at any time, and hold at once for all
    bytes that are on their way: math.inf keeps them until it is lowered."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._delay_s = 0.0
        self._cuts = False

    @property
    def delay_s(self) -> float:
        return self._delay_s

    @delay_s.setter
    def delay_s(self, value: float) -> None:
        self._delay_s = value
        self._wake()


class _End(Enum):
    """What can follow the last byte of a stream."""

    CLOSED = "closed"
    RESET = "reset"


class _Stream:
    """One direction of one connection: what was read from source and is not yet written to target."""

    def __init__(self, direction: Direction, faults: Faults, source: socket.socket, target: socket.socket) -> None:
        self.direction: Direction = direction
        self.faults = faults
        self.source = source
        self.target = target
        self.queue: deque[tuple[float, bytes | _End]] = deque()  # arrival, what
        self.in_flight = 0
        self.reading = True
        self.blocked = False  # the target reads nothing for now
        self.deaf = False  # target has gone; its source may not know yet

    def put(self, what: bytes | _End) -> None:
        self.queue.append((time.monotonic(), what))
        if isinstance(what, bytes):
            self.in_flight += len(what)
        else:
            self.reading = False

    def due_at(self) -> float | None:
        if not self.queue or self.blocked:
            return None
        return self.queue[0][0] + self.faults._delay_s

    def drop(self) -> None:
        self.queue.clear()
        self.in_flight = 0
        self.blocked = False


class _Connection:
    def __init__(self, number: int, client: socket.socket, server: socket.socket, proxy: TcpProxy) -> None:
        self.number = number
        self.client = client
        self.server = server
        self.requests = _Stream("to_server", proxy.to_server, client, server)
        self.replies = _Stream("to_client", proxy.to_client, server, client)
        self.streams = (self.requests, self.replies)

    def opposite(self, stream: _Stream) -> _Stream:
        return self.replies if stream is self.requests else self.requests


class TcpProxy:
    """Listens on `port` and forwards to upstream_port. Use it in a `with`, or call start() and close().

    A fault stays until heal(). Every method returns when what it asks for has happened. Delays are set on
    `to_server` and `to_client`.
    """

    def __init__(self, upstream_port: int, upstream_host: str = "127.0.0.1") -> None:
        self._upstream = (upstream_host, upstream_port)
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._requests: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._open: dict[int, _Connection] = {}
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._stopping = False
        self.port = 0
        self.accepted = 0
        """How many connections there have been."""
        self.log: list[LogEntry] = []
        self.to_server = Faults(self._wake)
        self.to_client = Faults(self._wake)

    # Life

    def start(self) -> Self:
        self._listen()
        self._thread.start()
        return self

    def close(self) -> None:
        """Reset what is open and end the thread. May be called twice."""
        if self._thread.is_alive():
            self._call(self._stop)
            self._thread.join()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    # What it is doing

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def seen(self, direction: Direction) -> bytes:
        return b"".join(entry.data for entry in list(self.log) if entry.direction == direction)

    # Faults

    def lead_to(self, upstream_port: int) -> None:
        """Connections that are made from now on lead to another server; cut() ends those that there are."""
        self._upstream = (self._upstream[0], upstream_port)

    def cut(self) -> None:
        """Reset all connections, both ends. New ones are served."""
        self._call(self._cut_all)

    def cut_at_next_byte(self, direction: Direction) -> None:
        """Reset the connection that carries the next byte in that direction, which does not arrive. heal() calls it off."""

        def arm() -> None:
            self._faults(direction)._cuts = True

        self._call(arm)

    def refuse(self) -> None:
        """Turn new connections away; the open ones go on."""
        self._call(self._stop_listening)

    def heal(self) -> None:
        """End all faults. What was late arrives now."""
        self._call(self._heal)

    # Everything below runs in the proxy's own thread, but for _call, _wake and the first _listen.

    def _call(self, what: Callable[[], None]) -> None:
        future: Future[None] = Future()
        self._requests.put((what, future))
        self._wake()
        future.result(timeout=10.0)

    def _wake(self) -> None:
        with suppress(OSError):  # full: it is awake already; closed: its thread has ended
            self._wake_sender.send(b"\0")

    def _faults(self, direction: Direction) -> Faults:
        return self.to_server if direction == "to_server" else self.to_client

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._seconds_to_next()):
                if key.fileobj is self._wake_receiver:
                    self._wake_receiver.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept(self._listener)
                elif isinstance(key.data, _Connection) and key.data.number in self._open:
                    self._touch(key.data, key.fileobj, events)
            # Before the asked-for faults: a byte that arrived first is treated first.
            self._forward_all()
            while not self._requests.empty():
                what, future = self._requests.get()
                try:
                    what()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    self._forward_all()
                    future.set_result(None)

    def _seconds_to_next(self) -> float | None:
        times = [stream.due_at() for connection in self._open.values() for stream in connection.streams]
        first = min((due for due in times if due is not None), default=float("inf"))
        return None if first == float("inf") else max(0.0, first - time.monotonic())

    def _listen(self) -> None:
        for _ in range(100):
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = self.port or candidate_port()
            try:
                listener.bind(("127.0.0.1", port))
                listener.listen(512)
            except OSError:  # another process took it; where the port must be the old one, it may come back
                listener.close()
                time.sleep(0.01)
                continue
            listener.setblocking(False)
            self.port, self._listener = port, listener
            self._selector.register(listener, selectors.EVENT_READ)
            return
        raise RuntimeError(f"the proxy cannot listen on port {self.port or 'any'}")

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # gone before it was served
        try:
            server = socket.create_connection(self._upstream, timeout=2.0)
        except OSError:
            _reset(client)
            return
        self.accepted += 1
        connection = _Connection(self.accepted, client, server, self)
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, connection)
        self._open[connection.number] = connection

    def _touch(self, connection: _Connection, end: object, events: int) -> None:
        for stream in connection.streams:
            if stream.target is end and events & selectors.EVENT_WRITE:
                stream.blocked = False
            if stream.source is end and events & selectors.EVENT_READ and stream.reading:
                self._read(connection, stream)

    def _read(self, connection: _Connection, stream: _Stream) -> None:
        try:
            data = stream.source.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            stream.put(_End.RESET)
            return
        if not data:
            stream.put(_End.CLOSED)
            return
        self.log.append(LogEntry(time.monotonic(), connection.number, stream.direction, data))
        stream.put(data)

    def _forward_all(self) -> None:
        for connection in list(self._open.values()):
            for stream in connection.streams:
                if connection.number in self._open:
                    self._forward(connection, stream)
            if connection.number in self._open:
                if all(not stream.reading and not stream.queue for stream in connection.streams):
                    self._close(connection, reset=False)
                else:
                    self._set_interest(connection)

    def _forward(self, connection: _Connection, stream: _Stream) -> None:
        faults = stream.faults
        if stream.deaf:
            stream.drop()
        now = time.monotonic()
        while (due := stream.due_at()) is not None and due <= now:
            what = stream.queue[0][1]
            if what is _End.RESET or (faults._cuts and isinstance(what, bytes)):
                faults._cuts = faults._cuts and what is _End.RESET
                self._close(connection, reset=True)
                return
            if isinstance(what, _End):
                stream.queue.popleft()
                with suppress(OSError):  # the other end has gone too
                    stream.target.shutdown(socket.SHUT_WR)
                return
            self._write(connection, stream, what)

    def _write(self, connection: _Connection, stream: _Stream, data: bytes) -> None:
        try:
            sent = stream.target.send(data)
        except BlockingIOError:
            stream.blocked = True
            return
        except OSError:
            # The target has gone. The news travels back to the source, through what the network does there.
            stream.drop()
            stream.deaf = True
            other = connection.opposite(stream)
            if other.reading:
                other.put(_End.RESET)
            return
        stream.in_flight -= sent
        arrival, _ = stream.queue.popleft()
        if sent < len(data):
            stream.queue.appendleft((arrival, data[sent:]))

    def _set_interest(self, connection: _Connection) -> None:
        for end in (connection.client, connection.server):
            events = 0
            for stream in connection.streams:
                if stream.source is end and stream.reading and stream.in_flight < _MAX_IN_FLIGHT:
                    events |= selectors.EVENT_READ
                if stream.target is end and stream.blocked:
                    events |= selectors.EVENT_WRITE
            registered = self._selector.get_map().get(end)
            if events and registered is None:
                self._selector.register(end, events, connection)
            elif events and registered is not None and registered.events != events:
                self._selector.modify(end, events, connection)
            elif not events and registered is not None:
                self._selector.unregister(end)

    def _close(self, connection: _Connection, *, reset: bool) -> None:
        del self._open[connection.number]
        for end in (connection.client, connection.server):
            if self._selector.get_map().get(end) is not None:
                self._selector.unregister(end)
            if reset:
                _reset(end)
            else:
                end.close()

    def _cut_all(self) -> None:
        for connection in list(self._open.values()):
            self._close(connection, reset=True)

    def _heal(self) -> None:
        for faults in (self.to_server, self.to_client):
            faults._delay_s = 0.0
            faults._cuts = False
        if self._listener is None:
            self._listen()

    def _stop(self) -> None:
        self._stopping = True
        self._stop_listening()
        self._cut_all()


def _reset(end: socket.socket) -> None:
    """Close with RST in place of an orderly end."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    end.close()
