"""Hand-overs within and between processes: several processes, in each of which many threads want one lock.

Each thread acquires and releases as fast as it can. Beside wheel_lock, in the same run, what a program could write itself
with redis-py (``bare``): a SET, a script that deletes and publishes, and one subscription for each thread that waits.

    python -m bench.handover_crowds [redis-url]        prints a table
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import redis

from tests.support.redis_server import RedisServer
from wheel_lock import LockContext

NAME = "bench:crowd"
RIVALS = ("wheel_lock", "bare")
CROWDS = ((1, 11), (2, 10), (2, 11), (4, 10))  # processes, and threads in each
SECONDS = 3.0
_COUNTED = ("evalsha", "set", "publish", "subscribe", "get", "del", "pttl")


class BareLock:
    """A lock with wake-ups, of as little as can be: owner-checked, but not renewed, and without a limit of time."""

    _RELEASE = """
        if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
        redis.call('del', KEYS[1])
        redis.call('publish', ARGV[2], '0')
        return 1
    """

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self._name = name
        self._channel = f"{name}:wake"
        self._token = f"{id(self)}:{time.monotonic_ns()}"
        self._release = client.register_script(self._RELEASE)
        self._wake_ups = client.pubsub(ignore_subscribe_messages=True)
        self._wake_ups.subscribe(self._channel)
        self._wake_ups.get_message(timeout=1.0)

    def acquire(self) -> None:
        while not self._client.set(self._name, self._token, nx=True, px=30_000):
            while self._wake_ups.get_message(timeout=1.0) is None:
                pass

    def release(self) -> None:
        self._release(keys=[self._name], args=[self._token, self._channel])


class Crowd(NamedTuple):
    """What was measured.

    Attributes:
        grants: By thread, those of one process after those of the other.
        took_s: How long it took.
        passed: The number of grants to another process than the one before.
        calls: The commands that the server has executed, in scripts, too, by name.
        client_cpu_s: CPU seconds of all processes.
        server_cpu_s: Of the server.
    """

    grants: list[int]
    took_s: float
    passed: int
    calls: dict[str, int]
    client_cpu_s: float
    server_cpu_s: float


def compete(rival: str, url: str, threads: int) -> None:
    """In a process of its own: have so many threads acquire and release for SECONDS; print what they were granted."""
    client = redis.Redis.from_url(url)
    context = LockContext(client)
    grants = [0] * threads
    granted_at: list[float] = []
    ready, go = threading.Barrier(threads + 1), threading.Event()

    def want(number: int) -> None:
        lock: Any = BareLock(client, NAME) if rival == "bare" else context.lock(NAME, timeout=30.0)
        ready.wait()
        go.wait()
        while time.monotonic() < until:
            lock.acquire()
            granted_at.append(time.monotonic())
            grants[number] += 1
            lock.release()

    workers = [threading.Thread(target=want, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    print("ready", flush=True)
    until = float(sys.stdin.readline())
    began_cpu_s = time.process_time()
    go.set()
    for worker in workers:
        worker.join()
    print(json.dumps([grants, granted_at, time.process_time() - began_cpu_s]), flush=True)
    context.close()


def measure(rival: str, url: str, processes: int, threads: int) -> Crowd:
    """Have a crowd compete for one lock for SECONDS."""
    client: Any = redis.Redis.from_url(url)
    command = [sys.executable, "-m", "bench.handover_crowds", url, rival, str(threads)]
    crowd = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    client.config_resetstat()
    cpu = client.info("cpu")
    began = time.monotonic()
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write(f"{began + SECONDS}\n")
        process.stdin.flush()
    grants, moments, client_cpu_s = [], [], 0.0
    for number, process in enumerate(crowd):
        output, _ = process.communicate(timeout=120)
        some, granted_at, cpu_s = json.loads(output)
        grants += some
        moments += [(moment, number) for moment in granted_at]
        client_cpu_s += cpu_s
    moments.sort()
    after, stats = client.info("cpu"), client.info("commandstats")
    return Crowd(
        grants=grants,
        took_s=moments[-1][0] - began,
        passed=sum(one[1] != other[1] for one, other in itertools.pairwise(moments)),
        calls={name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in _COUNTED},
        client_cpu_s=client_cpu_s,
        server_cpu_s=sum(after[part] - cpu[part] for part in ("used_cpu_user", "used_cpu_sys")),
    )


def main(url: str) -> None:
    print(f"{'':11} {'processes':>9} {'threads':>7} {'grants/s':>8} {'passed on':>9} {'least':>6} {'most':>6}", end="")
    print(f" {'client us':>9} {'server us':>9}   commands per grant")
    for processes, threads in CROWDS:
        for rival in RIVALS:
            redis.Redis.from_url(url).flushall()
            found = measure(rival, url, processes, threads)
            total = sum(found.grants)
            calls = " ".join(f"{name} {number / total:.2f}" for name, number in found.calls.items() if number)
            print(
                f"{rival:11} {processes:9} {threads:7} {total / found.took_s:8.0f} {found.passed / total:9.2f}", end=""
            )
            print(f" {min(found.grants):6} {max(found.grants):6}", end="")
            print(f" {found.client_cpu_s / total * 1e6:9.0f} {found.server_cpu_s / total * 1e6:9.0f}   {calls}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        compete(sys.argv[2], sys.argv[1], int(sys.argv[3]))
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with RedisServer() as server:
            main(server.url)
