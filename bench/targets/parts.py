"""What a pair of acquire and release, and a renewal, cost part by part: ``python -m bench.targets.parts --help``.

CPU time is that of each thread and of the server. Functions are counted by a profiler, in a run of its own, for it slows
the program down: the number of callers that share a write may differ a little there. System calls are counted by the
kernel, through perf where it is installed and permitted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import redis

from bench import page
from bench.targets.pairs import TASKS, THREADS, TIMEOUT_S, on_tasks, on_threads, pairs
from bench.workers import Worker, cpu_s, python, serve
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext

SELDOM = 0.05  # of system calls: fewer are not shown
SYSTEM_CALLS = (
    *("futex", "epoll_wait", "epoll_ctl", "poll", "read", "write", "sendto", "sendmsg", "recvfrom", "recvmsg"),
    *("getrandom", "getpid", "gettid", "clock_gettime", "madvise", "munmap"),
)
ATTACH_S = 1.0
INTERVAL_S = TIMEOUT_S / 3


class Calls:
    """A profiler of one or more threads: how many functions of Python, and how many built-in ones, they call."""

    def __init__(self) -> None:
        # A step of an iterator is atomic, so threads may share one.
        self._python, self._built_in = itertools.count(), itertools.count()

    def profile(self, frame: object, event: str, argument: object) -> None:
        if event == "call":
            next(self._python)
        elif event == "c_call":
            next(self._built_in)

    def counted(self) -> tuple[int, int]:
        return next(self._python), next(self._built_in)


class Subject:
    """In a worker: a context, and the work that is looked at.

    Args:
        kind: "1", "threads" or "tasks" for pairs, "held" for renewals.
        number: Pairs at a time, or locks held.
    """

    def __init__(self, kind: str, port: int, number: int) -> None:
        self._context = LockContext(redis.Redis(port=port, socket_timeout=60.0), release_on_close=False)
        self._runner = asyncio.Runner()
        self._work = partial(self._pairs, kind, number)
        if kind == "held":
            self._held = self._context.acquire_many([f"lock:{n}" for n in range(number)], timeout=TIMEOUT_S)
            self._work = partial(time.sleep, INTERVAL_S)
        self._work()
        self._timer_tid = self._on_timer(threading.get_native_id)

    def answer(self, line: str) -> dict[str, Any]:
        if line == "calls":
            return self._calls()
        began, cpu, timer_cpu = time.perf_counter(), time.process_time(), self._context.timer.cpu_s()
        turns, stats = self._context.timer.turns, self._context.stats()
        self._work()
        now = self._context.stats()
        timer_s = self._context.timer.cpu_s() - timer_cpu
        return {
            "wall_s": time.perf_counter() - began,
            "timer_s": timer_s,
            "callers_s": time.process_time() - cpu - timer_s,
            "turns": self._context.timer.turns - turns,
            "pairs": now.released - stats.released,
            "renewed": now.renewed - stats.renewed,
            "batches": now.batches - stats.batches,
            "timer_tid": self._timer_tid,
        }

    def _calls(self) -> dict[str, Any]:
        callers, timer = Calls(), Calls()
        self._on_timer(lambda: sys.setprofile(timer.profile))
        threading.setprofile(callers.profile)
        sys.setprofile(callers.profile)
        stats = self._context.stats()
        self._work()
        sys.setprofile(None)
        threading.setprofile(None)
        self._on_timer(lambda: sys.setprofile(None))
        now = self._context.stats()
        return {
            "callers": callers.counted(),
            "timer": timer.counted(),
            "pairs": now.released - stats.released,
            "renewed": now.renewed - stats.renewed,
        }

    def _pairs(self, kind: str, number: int) -> None:
        make = partial(self._context.lock, timeout=TIMEOUT_S)
        if kind == "1":
            pairs(make, "pair", number)
        elif kind == "threads":
            on_threads(make, THREADS, number // THREADS)
        else:
            make_async = partial(self._context.asyncio.lock, timeout=TIMEOUT_S)
            self._runner.run(on_tasks(make_async, TASKS, number // TASKS))

    def _on_timer(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call on the timer's thread."""
        results: list[Any] = []
        done = threading.Event()

        def run() -> None:
            results.append(call())
            done.set()

        self._context.timer.post(run)
        done.wait()
        return results[0]


class Parts(NamedTuple):
    """What one pair, or one renewal, costs. ``timer`` is the timer's thread, ``callers`` are all other threads."""

    wall_us: float
    cpu_us: dict[str, float]
    calls: dict[str, tuple[float, float]]
    system_calls: dict[str, dict[str, float]]
    bytes_sent: float
    turns: float
    batches: float


def look(kind: str, number: int) -> Parts:
    """Return what one pair, or one renewal, costs."""
    unit = "renewed" if kind == "held" else "pairs"
    with RedisServer() as server, Worker(python("bench.targets.parts", "worker", kind, server.port, number)) as worker:
        worker.answer()
        client: Any = server.client()
        with counted_system_calls(worker.pid) as counted:
            sent, server_s = client.info("stats")["total_net_input_bytes"], cpu_s(server.pid)
            plain = worker.ask("plain")
            server_s = cpu_s(server.pid) - server_s
            sent = client.info("stats")["total_net_input_bytes"] - sent
        calls = worker.ask("calls")
    ones = plain[unit]
    return Parts(
        plain["wall_s"] * 1e6 / ones,
        {
            "callers": plain["callers_s"] * 1e6 / ones,
            "timer": plain["timer_s"] * 1e6 / ones,
            "server": server_s * 1e6 / ones,
        },
        {who: (calls[who][0] / calls[unit], calls[who][1] / calls[unit]) for who in ("callers", "timer")},
        {
            who: {
                name: times / ones
                for (tid, name), times in counted.items()
                if (tid == plain["timer_tid"]) == (who == "timer")
            }
            for who in ("callers", "timer")
        },
        sent / ones,
        plain["turns"] / ones,
        plain["batches"] / ones,
    )


@contextmanager
def counted_system_calls(pid: int) -> Iterator[Counter[tuple[int, str]]]:
    """Count the system calls of a process by thread and name; the counter is filled at the end of the block.

    Threads that begin and end meanwhile count for the one that has started them.
    """
    counted: Counter[tuple[int, str]] = Counter()
    if shutil.which("perf") is None:
        yield counted
        return
    with tempfile.NamedTemporaryFile("r") as log:
        events = ",".join(f"syscalls:sys_enter_{name}" for name in SYSTEM_CALLS)
        command = ["perf", "stat", "-x", ",", "--per-thread", "-e", events, "-p", str(pid), "-o", log.name]
        counter = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
        try:
            time.sleep(ATTACH_S)
            yield counted
        finally:
            counter.send_signal(signal.SIGINT)  # it prints what it has, and ends
            counter.wait()
        for line in log:  # python-TID,COUNT,,syscalls:sys_enter_NAME,...
            fields = line.split(",")
            if len(fields) > 3 and fields[1].isdigit():
                counted[int(fields[0].rpartition("-")[2]), fields[3].removeprefix("syscalls:sys_enter_")] += int(
                    fields[1]
                )


def system_calls(times: dict[str, float], many: int = 1) -> str:
    """Return the most frequent first, each with how often ``many`` pairs or renewals make it."""
    if not times:
        return "not counted"
    ordered = sorted(((number * many, name) for name, number in times.items()), reverse=True)
    return ", ".join(f"{name} {number:.1f}" for number, name in ordered if number >= SELDOM) or "none"


def us(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def of_pairs(number: int) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the table of a pair."""
    found = [look("1", number), look("threads", number), look("tasks", number)]
    rows: list[Sequence[str]] = [
        ("time that passes, µs", *(us(one.wall_us) for one in found)),
        ("CPU of the callers' threads, µs", *(us(one.cpu_us["callers"]) for one in found)),
        ("CPU of the timer's thread, µs", *(us(one.cpu_us["timer"]) for one in found)),
        ("CPU of the server, µs", *(us(one.cpu_us["server"]) for one in found)),
    ]
    for who, what in (("callers", "callers"), ("timer", "timer's thread")):
        rows.append((f"functions called by {what}: Python's + built-in", *(_calls(one, who, 0) for one in found)))
        rows.append((f"system calls of {what}", *(system_calls(one.system_calls[who]) for one in found)))
    rows.append(("turns of the timer's thread", *(f"{one.turns:.2f}" for one in found)))
    rows.append(("bytes sent", *(f"{one.bytes_sent:.0f}" for one in found)))
    return ("a pair of acquire and release", "1 thread", f"{THREADS} threads", f"{TASKS} tasks"), rows


def of_renewals(held: Sequence[int]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the table of a renewal."""
    found = [look("held", number) for number in held]
    rows: list[Sequence[str]] = [
        ("CPU of the timer's thread, µs", *(us(one.cpu_us["timer"]) for one in found)),
        ("CPU of the client's other threads, µs", *(us(one.cpu_us["callers"]) for one in found)),
        ("CPU of the server, µs", *(us(one.cpu_us["server"]) for one in found)),
        ("locks in a script call", *(f"{1 / one.batches:.0f}" for one in found)),
        ("turns for 1,000 renewals", *(f"{one.turns * 1000:.1f}" for one in found)),
        ("functions called: Python's + built-in", *(_calls(one, "timer", 2) for one in found)),
        ("system calls for 1,000 renewals", *(system_calls(one.system_calls["timer"], 1000) for one in found)),
        ("bytes sent", *(f"{one.bytes_sent:.0f}" for one in found)),
    ]
    return ("a renewal", *(f"{number:,} held" for number in held)), rows


def _calls(parts: Parts, who: str, digits: int) -> str:
    python, built_in = parts.calls[who]
    return f"{python:.{digits}f} + {built_in:.{digits}f}"


def main() -> None:
    given = _arguments()
    tables = [page.markdown(*of_pairs(given.pairs)), page.markdown(*of_renewals(given.held))]
    print("\n\n".join(tables))
    if given.write:
        page.write(given.write, "parts", "\n\n".join([page.machine() + ".", *tables]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.targets.parts", description=__doc__)
    parser.add_argument("--pairs", type=int, default=8000, help=f"pairs that are looked at, at least {TASKS}")
    parser.add_argument("--held", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="numbers of locks held")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into a page, too")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        serve(Subject(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).answer)
    else:
        main()
