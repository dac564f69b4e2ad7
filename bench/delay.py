"""A worker that stands between a client and a server on loopback and delays what they send: ``PORT ROUND_TRIP_S``.

It answers a line with its own port. Half of the round trip is spent in each direction. All bytes of a direction have the
same delay, so they wait in one queue, in the order of their arrival, however many connections there are; a thread sleeps
until the next of them is due, because a selector's timeout is rounded up to milliseconds.
"""

from __future__ import annotations

import resource
import selectors
import socket
import sys
import threading
import time
from queue import SimpleQueue

from bench.workers import serve

READ_SIZE = 1 << 18

Queue = SimpleQueue[tuple[float, socket.socket, bytes]]
"""What is on its way: when it is due, where it goes, and the bytes, none at the end of a stream."""


def forward(queue: Queue, delay_s: float) -> None:
    """Send what is due. An end that does not read keeps its direction waiting, but not the reading."""
    while True:
        due_at, target, data = queue.get()
        if delay_s and (wait_s := due_at - time.monotonic()) > 0:
            time.sleep(wait_s)
        try:
            if data:
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has gone, and its own stream has an end


def read(selector: selectors.BaseSelector, listener: socket.socket, upstream_port: int, delay_s: float) -> None:
    """Read whatever comes, and queue it."""
    requests, replies = Queue(), Queue()
    for queue in (requests, replies):
        threading.Thread(target=forward, args=(queue, delay_s), daemon=True).start()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", upstream_port))
                for source, target, queue in ((client, server, requests), (server, client, replies)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(source, selectors.EVENT_READ, (target, queue))
            else:
                target, queue = key.data
                try:
                    data = key.fileobj.recv(READ_SIZE)  # type: ignore[union-attr]
                except OSError:
                    data = b""
                queue.put((time.monotonic() + delay_s, target, data))
                if not data:
                    selector.unregister(key.fileobj)


def main(upstream_port: int, round_trip_s: float) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # some rivals have a connection for each lock
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    arguments = selectors.DefaultSelector(), listener, upstream_port, round_trip_s / 2
    threading.Thread(target=read, args=arguments, daemon=True).start()
    serve(lambda _: {"port": listener.getsockname()[1]})


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
