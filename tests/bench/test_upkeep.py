"""Scenarios of the benchmark suite about locks that are kept over slow networks, beside others, and on clusters."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.rivals import Rival, in_python
from bench.scenarios import Run, load
from bench.served import commands, left, of_stopped
from bench.workers import Worker, python
from tests.support.redis_server import RedisServer, require_redis_server

FAILING = Rival("failing", lambda: [sys.executable, "-c", "print('failed no such mode')"], cluster=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["round_trips", "churn", "cluster"])
def test_a_scenario_is_measured(name: str, tmp_path: Path) -> None:
    require_redis_server()
    rivals = [rival for rival in in_python() if rival.name == "wheel_lock"]
    scenario = load(name)
    records = list(scenario.measure(Run([*rivals, FAILING], tiny=True)))
    assert json.loads(json.dumps(records)) == records
    for rival in rivals:
        mine = [record for record in records if record["rival"] == rival.name]
        assert mine
        assert not [record for record in mine if "failed" in record]
    theirs = [record for record in records if record["rival"] == "failing"]
    assert theirs
    assert not [record for record in theirs if "values" in record]
    text = scenario.tables(records)
    for rival in (*rivals, FAILING):
        assert f" {rival.name} |" in text
    drawn = scenario.draw(records, tmp_path)
    assert drawn
    for file in drawn:
        assert (tmp_path / file).stat().st_size


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
        server = threading.Thread(target=echo, args=(listener,), daemon=True)
        server.start()
        with Worker(python("bench.delay", listener.getsockname()[1], round_trip_s)) as delay:
            delay.answer()
            with socket.create_connection(("127.0.0.1", delay.ask()["port"])) as client:
                began = time.monotonic()
                client.sendall(b"x")
                assert client.recv(1) == b"x"
                assert time.monotonic() - began >= round_trip_s
                sender = threading.Thread(target=client.sendall, args=(data,), daemon=True)
                sender.start()
                received = bytearray()
                while len(received) < len(data):
                    received += client.recv(1 << 16)
                assert received == data
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
        server.join()


def test_what_a_server_has_left() -> None:
    with RedisServer() as server:
        client = server.client()
        before = commands([client])
        for number in range(100):
            client.set(f"b:{number}", "token", px=20_000 + number)
        client.set("other", "lock", px=100)
        assert commands([client]) - before >= 101
        there = left([client], "b:")
        assert there.keys == 100
        assert there.least_s is not None
        assert 0 < there.least_s <= 20.2
        later = left([client], "b:", time.monotonic() - 50.0)
        assert later.least_s is not None
        assert later.least_s > 50.0
        assert there.behind_s(30.0) == pytest.approx(20.0 - there.least_s)
        assert there.behind_s(15.0) == 0.0
        client.flushall()
        assert left([client], "b:") == (0, None)


@pytest.mark.slow
def test_a_worker_that_is_stopped_goes_on_after_the_look() -> None:
    options = {"locks": 20, "timeout_s": 9.0, "prefix": "b:", "first": 0}
    with RedisServer() as server:
        worker = Worker(python("bench.rivals.worker", "wheel_lock", "hold", server.url, json.dumps(options)))
        with worker:
            worker.answer()
            there = of_stopped(worker, [server.client()], "b:")
            assert there.keys == 20
            assert worker.ask("go read")["lost"] == 0
            assert worker.ask("go release") == {}
            assert left([server.client()], "b:").keys == 0
