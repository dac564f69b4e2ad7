"""What the benchmarks use: workers that end early, delayed connections, and what a server has left."""

from __future__ import annotations

import socket
import sys
import time
from functools import partial

import pytest

from bench.workers import Worker, python
from tests.support.background import Background


def test_a_worker_that_is_ended_as_it_writes_has_not_answered() -> None:
    program = "import time; print('lost 1 2.5 gone'); print('lost 2 2', end='', flush=True); time.sleep(60)"
    with Worker([sys.executable, "-c", program]) as worker:
        with pytest.raises(RuntimeError, match="no answer in 1 s"):
            worker.answer(1.0)
        assert [loss.index for loss in worker.losses] == [1]


def test_a_delay_passes_on_what_it_reads_and_no_sooner() -> None:
    round_trip_s, data = 0.06, bytes(range(256)) * 10_000

    def echo(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            while piece := connection.recv(1 << 16):
                connection.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Background(partial(echo, listener))
        with Worker(python("bench.delay", listener.getsockname()[1], round_trip_s)) as delay:
            delay.answer()
            with socket.create_connection(("127.0.0.1", delay.ask()["port"])) as client:
                began = time.monotonic()
                client.sendall(b"x")
                assert client.recv(1) == b"x"
                assert time.monotonic() - began >= round_trip_s
                Background(partial(client.sendall, data))
                received = bytearray()
                while len(received) < len(data):
                    received += client.recv(1 << 16)
                assert received == data
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
        server.result()
