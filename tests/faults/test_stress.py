"""Everybody at once: processes and threads that contend while one or the other is stopped, judged by the checker."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults.checker import Belief, History, Loss, Stop, Write, check
from tests.faults.monitor import Monitor
from tests.support.nursery import Child, Nursery
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

PROCESSES, THREADS, DURATION_S, TIMEOUT_S = 4, 4, 5.0, 0.3
NAMES = [f"stress:{number}" for number in range(6)]
LATE_S = 1.0  # the machine is as busy as it can be


def test_stopped_contenders_never_believe_in_one_lock_together(fresh_redis: RedisServer, tmp_path: Path) -> None:
    """4 processes with 4 threads each, leases of 0.3 s, a random process stopped for longer or shorter than that; the
    history that they leave breaks none of the rules."""
    client = fresh_redis.client()
    history = History()
    with (
        Monitor(fresh_redis) as monitor,
        TcpProxy(fresh_redis.port) as proxy,
        Nursery("tests.faults.contender") as nursery,
    ):
        # On a slow network there is always something on its way when a process stops.
        for direction in (proxy.to_server, proxy.to_client):
            direction.delay_s, direction.jitter_s = 0.005, 0.04
        processes = [start(nursery, fresh_redis, proxy, tmp_path / f"{number}.json") for number in range(PROCESSES)]
        try:
            while not all(process.ends_within(0.0) for process in processes):
                process = random.choice(processes)
                client.delete(f"nothing:{random.randrange(100)}")
                if not process.ends_within(0.0):
                    history.stops.append(stop_for_a_while(process))
                time.sleep(random.uniform(0.02, 0.2))
            assert [process.wait() for process in processes] == [0] * PROCESSES
        finally:
            for process in processes:
                process.kill()
    assert len(history.stops) > 5
    for path in tmp_path.glob("*.json"):
        part = json.loads(path.read_text())
        history.beliefs += [Belief(*belief) for belief in part["beliefs"]]
        history.losses += [Loss(*loss) for loss in part["losses"]]
        history.writes += [Write(*write) for write in part["writes"]]
        history.stops += [Stop(*stop) for stop in part["stops"]]  # the machine may have stopped one, too
    history.tenures = monitor.tenures(NAMES)

    assert check(history, late_s=LATE_S) == []
    # It was no idle afternoon.
    assert len(history.beliefs) > 50
    assert len(history.losses) > 5
    assert len(history.writes) > 50
    assert {belief.name for belief in history.beliefs} == set(NAMES)
    assert len({belief.process for belief in history.beliefs}) == PROCESSES
    assert len(history.tenures) >= len(history.beliefs)


def start(nursery: Nursery, server: RedisServer, proxy: TcpProxy, path: Path) -> Child:
    settings = {
        "url": proxy.url,
        "register_url": server.url,
        "names": NAMES,
        "timeout": TIMEOUT_S,
        "duration": DURATION_S,
        "threads": THREADS,
        "path": str(path),
    }
    return nursery.start(json.dumps(settings))


def stop_for_a_while(process: Child) -> Stop:
    since = time.monotonic()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(random.uniform(0.2, 1.5) * TIMEOUT_S)
    os.kill(process.pid, signal.SIGCONT)
    return Stop(process.pid, since, time.monotonic())
