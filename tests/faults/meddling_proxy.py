"""A network that fails in ways that need more than what a network does: see MeddlingProxy."""

from __future__ import annotations

from tests.support.proxy import TcpProxy, _Connection, _End, _Stream


class MeddlingProxy(TcpProxy):
    """A proxy that can also lose single connections for good, and put words into the server's mouth."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self._words: bytes | None = None
        self._for_ever = False
        self._unbearable: bytes | None = None

    def hang_up_at(self, words: bytes) -> None:
        """Reset each connection on which a piece of what clients send contains these words; the piece is dropped."""

        def arm() -> None:
            self._unbearable = words

        self._call(arm)

    def strand(self) -> None:
        """Swallow everything on the connections that are open now, as a firewall does that has forgotten them.

        To both ends they look idle for ever. New connections are served.
        """

        def lose() -> None:
            for connection in self._open.values():
                for stream in connection.streams:
                    stream.lost = True

        self._call(lose)

    def say(self, words: bytes) -> None:
        """Say this, unasked, on every open connection."""

        def speak() -> None:
            for connection in self._open.values():
                connection.replies.put(words)

        self._call(speak)

    def say_instead(self, words: bytes, *, for_ever: bool = False) -> None:
        """Replace the next piece of what the server says, or all of it from now on until heal()."""

        def arm() -> None:
            self._words, self._for_ever = words, for_ever

        self._call(arm)

    def heal(self) -> None:
        super().heal()

        def disarm() -> None:
            self._words = self._unbearable = None

        self._call(disarm)

    def _read(self, connection: _Connection, stream: _Stream) -> None:
        before = len(stream.queue)
        super()._read(connection, stream)
        if self._unbearable is not None and stream is connection.requests and len(stream.queue) > before:
            data = stream.queue[-1][2]
            if isinstance(data, bytes) and self._unbearable in data:
                stream.queue.pop()
                stream.in_flight -= len(data)
                stream.put(_End.RESET)
        if self._words is None or stream is not connection.replies or len(stream.queue) == before:
            return
        data = stream.queue[-1][2]
        if isinstance(data, bytes):
            stream.queue.pop()
            stream.in_flight -= len(data)
            stream.put(self._words)
            if not self._for_ever:
                self._words = None
