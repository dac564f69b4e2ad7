"""How long after kill -9 of its holder a lock is granted to another process, with a keeper.

    python -m bench.crashed [--kills 1000] [--locks 1 1000 100000] [--keeper child] [--megabytes 0]

A process holds locks on a server of its own, with a timeout that no run outlasts, and is killed while this process waits
for the last one of its names. The time is counted from before the signal to the return of the acquire. What the holder
held is looked for afterwards: nothing may be left.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from bench.page import machine, markdown
from bench.watched import name_of, quantile
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext
from wheel_lock.cli.output import StatusLine

TIMEOUT_S = 600.0
PATIENCE_S = 60.0
SETTLED_S = 0.02  # for the waiter to be subscribed

LINE = StatusLine(sys.stderr)


class Figures(NamedTuple):
    """The result for one number of locks; times in seconds.

    Attributes:
        kills: How many processes were killed.
        left: How many keys were left.
    """

    kills: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    left: int


def main(url: str, keeper: str, locks: str, megabytes: str) -> None:
    """Hold locks, in a process that the fork server has made; say so when the keeper has all that it needs."""
    context = LockContext.from_url(url, release_on_crash=True if keeper == "child" else keeper, response_timeout=60.0)
    held = context.acquire_many(map(name_of, range(int(locks))), timeout=TIMEOUT_S)
    assert all(held.values())
    memory = b"x" * (int(megabytes) << 20)
    kept = context._engine.keeping
    assert kept is not None
    while kept._session is None:
        time.sleep(0.001)
    print("ready", len(memory), flush=True)
    while True:
        time.sleep(PATIENCE_S)


def _kill(pid: int, killed_at: list[float], timeout: object) -> None:
    killed_at.append(time.monotonic())
    os.kill(pid, signal.SIGKILL)


def measure(locks: int, arguments: argparse.Namespace) -> Figures:
    """Kill processes that hold so many locks."""
    delays: list[float] = []
    left = 0
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        holders = stack.enter_context(ForkServer("bench.crashed"))
        context = stack.enter_context(LockContext.from_url(server.url, fallback_interval=TIMEOUT_S))
        client = server.client()
        for kill in range(arguments.kills):
            LINE.say(f"{locks:,} locks: kill {kill + 1:,} of {arguments.kills:,}")
            holder, heard = holders.start_heard(server.url, arguments.keeper, str(locks), str(arguments.megabytes))
            with os.fdopen(heard) as lines:
                assert lines.readline().startswith("ready")
            killed_at: list[float] = []
            context.timer.new_timeout(partial(_kill, holder.pid, killed_at), SETTLED_S)
            waiting = context.lock(name_of(locks - 1), blocking_timeout=PATIENCE_S)
            if waiting.acquire():
                delays.append(time.monotonic() - killed_at[0])
                waiting.release()
            holder.wait()
            until = time.monotonic() + PATIENCE_S
            while client.dbsize() and time.monotonic() < until:
                time.sleep(0.001)
            left += client.dbsize()
            client.flushall()
    LINE.say("")
    delays.sort()
    p50, p90, p99, longest = [quantile(delays or [PATIENCE_S], share) for share in (0.5, 0.9, 0.99, 1.0)]
    return Figures(len(delays), p50, p90, p99, longest, left)


def run() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crashed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="processes that are killed, for each number of locks")
    parser.add_argument("--locks", type=int, nargs="+", default=[1, 1000, 100_000], help="locks that each holds")
    parser.add_argument("--keeper", default="child", help="child, or the path of the socket of a keeper")
    parser.add_argument("--megabytes", type=int, default=0, help="resident memory of each beside its locks")
    arguments = parser.parse_args()
    found = {locks: measure(locks, arguments) for locks in arguments.locks}
    print(machine())
    print()
    rows = [
        [
            f"{locks:,}",
            f"{figures.kills:,}",
            *[f"{seconds * 1000:,.1f} ms" for seconds in figures[1:5]],
            str(figures.left),
        ]
        for locks, figures in found.items()
    ]
    print(markdown(["held", "kills", "next grant, p50", "p90", "p99", "longest", "keys left"], rows))
    return int(any(figures.left or figures.kills != arguments.kills for figures in found.values()))


if __name__ == "__main__":
    sys.exit(run())
