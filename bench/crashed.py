"""How long after kill -9 of its holder a lock is granted to another process, with a keeper.

    python -m bench.crashed [--kills 1000] [--locks 1 1000 100000] [--keeper child] [--megabytes 0 200 1000]

A process holds locks on a server of its own, with a timeout that no run outlasts, and is killed while another one waits
for the last one of its names. The time is counted from before the signal to the return of the acquire. What the holder
held is looked for afterwards: nothing may be left. The memory of the keeper is what it has used at most, from VmHWM; that
of the record is what of it has been written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from typing import NamedTuple

from bench.page import machine, markdown
from bench.rivals import Rival, in_python
from bench.status_line import StatusLine
from bench.watched import name_of, quantile
from bench.workers import Worker, peak_bytes, rss_and_threads
from tests.keeper.rig import keepers_of
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext

TIMEOUT_S = 600.0
PATIENCE_S = 60.0
SETTLED_S = 0.05  # for the waiter to be subscribed

LINE = StatusLine(sys.stderr)


class Figures(NamedTuple):
    """The result for one number of locks; times in seconds.

    Attributes:
        kills: How many processes were killed.
        left: How many keys were left.
        keeper_bytes: The memory of the keeper.
        record_bytes: That of the record.
    """

    kills: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    left: int
    keeper_bytes: int
    record_bytes: int


def main(url: str, keeper: str, locks: str, megabytes: str) -> None:
    """Hold locks, in a process that the fork server has made; say so when the keeper has all that it needs."""
    context = LockContext.from_url(url, release_on_crash=True if keeper == "child" else keeper, response_timeout=60.0)
    held = context.acquire_many(map(name_of, range(int(locks))), timeout=TIMEOUT_S)
    assert all(held.values())
    memory = b"x" * max((int(megabytes) << 20) - rss_and_threads(os.getpid())[0], 0)
    kept = context._engine.keeping
    assert kept is not None
    while kept._session is None:
        time.sleep(0.001)
    assert kept._record is not None
    print("ready", os.fstat(kept._record.file).st_blocks * 512, len(memory), flush=True)
    while True:
        time.sleep(PATIENCE_S)


def waiter(rival: Rival, url: str, name: str, timeout_s: float) -> Worker:
    """Return a worker that waits for a name when :func:`next_grant` asks it to."""
    options = {"name": name, "timeout_s": timeout_s, "hold_s": 0.0}
    return Worker([*rival.command(), "handover", url, json.dumps(options)])


def next_grant(waiting: Worker, pid: int) -> float:
    """Kill the holder of a name while a worker waits for it; return how long after that the worker had it, in seconds."""
    waiting.tell("go 1")
    time.sleep(SETTLED_S)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    granted_at: float = waiting.answer(PATIENCE_S)["moments"][0][0]
    return granted_at - killed_at


def measure(locks: int, megabytes: int, arguments: argparse.Namespace) -> Figures:
    """Kill processes that hold so many locks."""
    delays: list[float] = []
    left = keeper_bytes = record_bytes = 0
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        holders = stack.enter_context(ForkServer("bench.crashed"))
        waiting = stack.enter_context(waiter(in_python()[0], server.url, name_of(locks - 1), TIMEOUT_S))
        waiting.answer()
        client = server.client()
        for kill in range(arguments.kills):
            LINE.say(f"{locks:,} locks, {megabytes:,} MB: kill {kill + 1:,} of {arguments.kills:,}")
            holder, heard = holders.start_heard(server.url, arguments.keeper, str(locks), str(megabytes))
            with os.fdopen(heard) as lines:
                record_bytes = int(lines.readline().split()[1])
            (keeper,) = keepers_of(holder.pid)
            delays.append(next_grant(waiting, holder.pid))
            holder.wait()
            client.delete(f"{name_of(locks - 1)}:turns")
            until = time.monotonic() + PATIENCE_S
            while client.dbsize() and time.monotonic() < until:
                time.sleep(0.001)
            left += client.dbsize()
            keeper_bytes = max(keeper_bytes, peak_bytes(keeper))
            if arguments.keeper == "child":
                os.kill(keeper, signal.SIGKILL)  # it would repeat the release until the timeout, beside all others
            client.flushall()
    LINE.say("")
    delays.sort()
    p50, p90, p99, longest = [quantile(delays or [PATIENCE_S], share) for share in (0.5, 0.9, 0.99, 1.0)]
    return Figures(len(delays), p50, p90, p99, longest, left, keeper_bytes, record_bytes)


def run() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crashed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="processes that are killed, for each number of locks")
    parser.add_argument("--locks", type=int, nargs="+", default=[1, 1000, 100_000], help="locks that each holds")
    parser.add_argument("--keeper", default="child", help="child, or the path of the socket of a keeper")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[0], help="resident memory of each, at least")
    arguments = parser.parse_args()
    sizes = itertools.product(arguments.locks, arguments.megabytes)
    found = {(locks, megabytes): measure(locks, megabytes, arguments) for locks, megabytes in sizes}
    print(machine())
    print()
    rows = [
        [
            f"{locks:,}",
            f"{megabytes:,} MB" if megabytes else "",
            f"{figures.kills:,}",
            *[f"{seconds * 1000:,.1f} ms" for seconds in figures[1:5]],
            str(figures.left),
            f"{figures.keeper_bytes / 1e6:.1f} MB",
            f"{figures.record_bytes / locks:,.0f} bytes",
        ]
        for (locks, megabytes), figures in found.items()
    ]
    delays = ["next grant, p50", "p90", "p99", "longest"]
    print(markdown(["held", "resident", "kills", *delays, "keys left", "keeper", "record, for a lock"], rows))
    return int(any(figures.left or figures.kills != arguments.kills for figures in found.values()))


if __name__ == "__main__":
    sys.exit(run())
