"""The test's side of a crowd: starts its processes, disturbs them, and collects what they wrote down."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.crowds.checker import Claim, History
from tests.crowds.workers import KINDS, PERMITS, TIMEOUT_S
from tests.faults.checker import Belief, Loss, Stop
from tests.faults.holders import ROOT
from tests.support.redis_server import RedisServer

PROCESSES, WORKERS = 2, 8
STARTING_S, DISTURBED_S, QUIET_S = 1.5, 8.0, 5.5
STOOD_S = 0.25  # for less than that nothing needs an excuse
FAR_BEHIND_S = 20.0  # only a deadlock takes a process longer to come to its end


@dataclass
class Crowd:
    """What a crowd has done, by kind of lock."""

    histories: dict[str, History]
    workers: dict[str, list[str]] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)  # acquires whose time was over, but not by a stop
    begin: float = 0.0
    quiet: float = 0.0  # from here on nothing disturbed them
    until: float = 0.0
    stops: list[Stop] = field(default_factory=list)  # on purpose
    left: list[bytes] = field(default_factory=list)  # keys that were there when everything had been released
    said: list[str] = field(default_factory=list)  # on standard error, but for the losses that the library logs


def run_crowd(server: RedisServer, directory: Path) -> Crowd:
    """Have a crowd contend for every kind of lock at the same time."""
    permits = {"semaphore": PERMITS}
    crowd = Crowd({kind: History(permits=permits.get(kind)) for kind in KINDS})
    crowd.begin = time.monotonic() + STARTING_S
    crowd.until = crowd.begin + DISTURBED_S + QUIET_S
    processes, errors = [], []
    try:
        for number in range(PROCESSES):
            errors.append((directory / f"{number}.err").open("w+"))
            processes.append(_start(server, directory, number, crowd, errors[-1]))
        crowd.stops = _disturb(server, processes, crowd.begin + DISTURBED_S)
        crowd.quiet = time.monotonic()
        _wait_until_done(processes, crowd.until + FAR_BEHIND_S)
        crowd.left = _left_over(server)
        for process in processes:
            process.communicate("end\n", FAR_BEHIND_S)
        for file in errors:
            file.seek(0)
            crowd.said += [line for line in file if not line.startswith("lost ")]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for file in errors:
            file.close()
    assert [process.returncode for process in processes] == [0] * PROCESSES, crowd.said
    parts = [json.loads((directory / f"{number}.json").read_text()) for number in range(PROCESSES)]
    # What the machine has done to them excuses as much as what was done on purpose.
    stood = [Stop(number, *times) for number, part in enumerate(parts) for times in part["stood"]]
    stops = [*crowd.stops, *(stop for stop in stood if stop.until - stop.since > STOOD_S)]
    for part in parts:
        _collect(part, crowd, stops)
    for history in crowd.histories.values():
        history.stops = stops
    return crowd


def _start(server: RedisServer, directory: Path, number: int, crowd: Crowd, errors: IO[str]) -> subprocess.Popen[str]:
    settings = {
        "url": server.url,
        "number": number,
        "tasks": number % 2 == 1,
        "workers": WORKERS,
        "begin": crowd.begin,
        "until": crowd.until,
        "path": str(directory / f"{number}.json"),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crowds.member", json.dumps(settings)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _disturb(server: RedisServer, processes: list[subprocess.Popen[str]], until: float) -> list[Stop]:
    """One disturbance after the other; return when each process was stopped, for longer than a lease lasts."""
    client, stops = server.client(), []
    number = 0
    while number < len(processes) or time.monotonic() < until - 2 * TIMEOUT_S:
        for what in ("script flush", "client kill type normal", "stop", "client kill type pubsub"):
            time.sleep(random.uniform(0.1, 0.4))
            if what == "stop":
                stops.append(_stop_for_a_while(processes[number % PROCESSES], number % PROCESSES))
                number += 1
            else:
                client.execute_command(*what.split())
    client.close()
    return stops


def _stop_for_a_while(process: subprocess.Popen[str], number: int) -> Stop:
    since = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    time.sleep(random.uniform(1.2, 1.8) * TIMEOUT_S)
    process.send_signal(signal.SIGCONT)
    return Stop(number, since, time.monotonic())


def _wait_until_done(processes: list[subprocess.Popen[str]], until: float) -> None:
    """Return when each has said that it is done, or has come to an end that its exit code tells of."""
    for process in processes:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], max(until - time.monotonic(), 0.0))[0], "a process is stuck"


def _left_over(server: RedisServer) -> list[bytes]:
    """The keys of locks that are there although all have been released, and do not expire."""
    client = server.client()

    def left() -> list[bytes]:
        keys = [bytes(key) for key in client.scan_iter()]
        return [key for key in keys if not key.startswith(b"wheel_lock:fence:")]

    until = time.monotonic() + 2 * TIMEOUT_S
    while left() and time.monotonic() < until:
        time.sleep(0.02)
    return left()


def _collect(part: dict[str, Any], crowd: Crowd, stops: list[Stop]) -> None:
    for kind, history in crowd.histories.items():
        crowd.workers.setdefault(kind, []).extend(part["workers"][kind])
        history.claims += [Claim(worker, mode, Belief(*belief)) for worker, mode, belief in part["claims"][kind]]
        history.losses += [Loss(*loss) for loss in part["losses"][kind]]
    crowd.troubles += part["troubles"]
    for process, since, until, what in part["unanswered"]:
        if not any(stop.process == process and stop.since < until and since < stop.until for stop in stops):
            crowd.unanswered.append(what)
