"""Nodes of a cluster that do nothing but tell who owns what, be it true or not."""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import Self

import hiredis

from wheel_lock.protocol.keys import SLOTS


class Teller:
    """A node that says of some node that it owns every slot. Use it in a ``with``.

    Attributes:
        port: Where it listens, on loopback; nobody does after it was closed.
        owner: The port of the node that it names as the owner of all slots.
        replicas: The ports of those that it names as that node's replicas.
        well: Whether it says that the cluster is well.
        epoch: The latest change that it says to have seen.
    """

    def __init__(self) -> None:
        teller = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                teller._serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.owner = self.port
        self.replicas: list[int] = []
        self.well = True
        self.epoch = 1

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Die."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, client: socket.socket) -> None:
        asked = hiredis.Reader()
        while data := client.recv(1 << 16):
            asked.feed(data)
            while (words := asked.gets()) is not False:
                client.sendall(self._answer([word.upper() for word in words]))

    def _answer(self, words: list[bytes]) -> bytes:
        if words == [b"CLUSTER", b"INFO"]:
            state = "ok" if self.well else "fail"
            text = f"cluster_state:{state}\r\ncluster_current_epoch:{self.epoch}\r\n"
            return f"${len(text)}\r\n{text}\r\n".encode()
        if words == [b"CLUSTER", b"SLOTS"]:
            nodes = [self.owner, *self.replicas]
            entries = [f"*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\n{n}\r\n" for n, port in enumerate(nodes)]
            return f"*1\r\n*{2 + len(nodes)}\r\n:0\r\n:{SLOTS - 1}\r\n{''.join(entries)}".encode()
        return b"+OK\r\n"
