"""How many renewals a second there can be, and how many the server could do."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from bench import page, plot
from bench.rivals import Rival
from bench.saturating import TIMEOUT_S, names
from bench.scenarios import Record, Run, Scenario, failed, found, number, skipped, spread, values_of
from bench.workers import Worker, cpu_s, python
from tests.support.redis_server import RedisServer, redis_server_version, require_redis_server
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.scripts import RENEW

BATCH = ContextOptions().batch_size  # leases in a call
BENCHMARK = Rival("redis-benchmark", tuple)
_TOKEN = "0" * 22  # as long as the library's
_ERRORS = (RuntimeError, OSError, redis.RedisError)


def redis_benchmark() -> str | None:
    """Return the program that comes with the server, or None."""
    server = Path(require_redis_server())
    beside = server.with_name(server.name.replace("server", "benchmark"))
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("redis-benchmark")


def measure(run: Run) -> Iterator[Record]:
    ours = next((rival for rival in run.rivals if rival.name == plot.OURS), None)
    if ours is None:
        return
    program = redis_benchmark()
    for locks in run.pick((10_000, 100_000), (10_000, 100_000), (200,)):
        case = {"locks": locks}
        if program is None:
            yield skipped(BENCHMARK, case, "no redis-benchmark")
        run.say(f"saturated: {locks:,} locks")
        with ExitStack() as stack:
            renewing = [(ours, stack.enter_context(library(locks)))]
            if program is not None:
                renewing.append((BENCHMARK, stack.enter_context(benchmark(program, locks))))
            for count in range(run.pick(run.rounds, run.rounds, 1)):
                for rival, window in tuple(renewing):
                    try:
                        yield found(rival, case, count, window(run.pick(5.0, 2.0, 0.3)))
                    except _ERRORS as error:
                        renewing.remove((rival, window))
                        yield failed(rival, case, error)


Window = Callable[[float], dict[str, float]]


@contextmanager
def library(locks: int, *before: str) -> Iterator[Window]:
    """Hold locks that are always due, in a process that stands still between the windows; ``before`` starts its command."""
    with (
        RedisServer() as server,
        Worker([*before, *python("bench.saturating", server.url, json.dumps({"locks": locks}))]) as worker,
    ):

        def window(seconds: float) -> dict[str, float]:
            worker.go_on()
            before = worker.ask()
            time.sleep(seconds / 4)  # it warms up
            values = watch(server, worker.pid, seconds)
            after = worker.ask()
            worker.stop()
            if after["lost"]:
                raise RuntimeError(f"{after['lost']:,} lost")
            calls = after["calls"] - before["calls"]
            return values | {"locks_per_call": (after["renewed"] - before["renewed"]) / calls}

        worker.answer()
        worker.stop()
        try:
            yield window
        finally:
            worker.go_on()


@contextmanager
def benchmark(program: str, locks: int) -> Iterator[Window]:
    """Have redis-benchmark send the library's own script calls, about random ones of as many locks."""
    with RedisServer() as server:
        client = server.client(socket_timeout=60.0)
        script = RENEW.form(2 if redis_server_version() >= (7,) else 0)
        client.script_load(script.source)
        size = min(BATCH, locks)
        # As many calls are under way as the library's locks make; on two connections, so that the server never waits.
        options = ["-c", "2", "-P", max(locks // size // 2, 1), "-n", 1_000_000, "-r", locks]
        leases = ["lock:__rand_int__", _TOKEN] * size
        arguments = ["-h", "127.0.0.1", "-p", server.port, *options]
        command = [program, *arguments, "EVALSHA", script.sha1, 0, round(TIMEOUT_S * 1000), *leases]

        def window(seconds: float) -> dict[str, float]:
            with client.pipeline(transaction=False) as pipeline:
                for name in names(locks):
                    pipeline.set(name, _TOKEN, px=round(TIMEOUT_S * 1000))
                pipeline.execute()
            process = subprocess.Popen(
                [str(argument) for argument in command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
            try:
                time.sleep(seconds / 4)
                return watch(server, process.pid, seconds) | {"locks_per_call": float(size)}
            finally:
                process.kill()
                process.wait()

        yield window


def watch(server: RedisServer, pid: int, seconds: float) -> dict[str, float]:
    """Return what a server and its client, process ``pid``, do meanwhile.

    Raises:
        RuntimeError: There are calls that do not renew what they are about.
    """
    client = server.client(socket_timeout=60.0)

    def counted() -> tuple[float, ...]:
        commands: Any = client.info("commandstats")
        calls = (commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("get", "pexpire"))
        return (*calls, cpu_s(pid), cpu_s(server.pid), time.monotonic())

    before = counted()
    time.sleep(seconds)
    # The script reads each lock once, whether it renews it or not.
    looks, renewals, client_s, server_s, took_s = (now - then for now, then in zip(counted(), before, strict=True))
    if not looks or renewals < 0.99 * looks:
        raise RuntimeError(f"{looks:,} locks were looked at, and {renewals:,} were renewed")
    return {
        "renewals_per_s": looks / took_s,
        "client_us": client_s / looks * 1e6,
        "server_us": server_s / looks * 1e6,
        "server_cores": server_s / took_s,
    }


def names_of(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record["rival"] for record in records))


def numbers(records: Sequence[Record]) -> list[int]:
    return sorted({record["case"]["locks"] for record in records})


def share(records: Sequence[Record], locks: int) -> list[float]:
    """Return what share of redis-benchmark's rate the library reaches, for each round."""
    ours, most = (values_of(records, name, "renewals_per_s", locks=locks) for name in (plot.OURS, BENCHMARK.name))
    return [one / other for one, other in zip(ours, most, strict=False)]


def tables(records: Sequence[Record]) -> str:
    lines = [
        "Locks that are due again as soon as they are renewed (`renew_every` is a tick of 10 ms), so that the library "
        "sends without a pause; beside it redis-benchmark, which sends the same script calls, each about "
        f"{BATCH:,} random locks of as many, as many calls at a time. The two take turns, each with a server of its own; "
        "medians, and in brackets the least and the largest. Renewals are counted by the server; CPU is that of the whole "
        "process.",
    ]
    head = ["", "renewals/s", "client, µs", "server, µs", "server, cores", "locks a call", "share"]
    for locks in numbers(records):
        rows = []
        for name in names_of(records):

            def of(key: str, name: str = name, locks: int = locks) -> list[float]:
                return values_of(records, name, key, locks=locks)

            if rates := of("renewals_per_s"):
                costs = [number(statistics.median(of(key))) for key in ("client_us", "server_us", "server_cores")]
                reached = spread(share(records, locks)) if name == plot.OURS else ""
                rows.append([name, spread(rates), *costs, number(statistics.median(of("locks_per_call"))), reached])
            for record in records:
                if record["rival"] == name and record["case"]["locks"] == locks and "values" not in record:
                    why = next(f"{word}: {record[word]}" for word in ("failed", "skipped") if word in record)
                    rows.append([name, why[:60], *[""] * (len(head) - 2)])
        lines += ["", f"{locks:,} locks:", "", page.markdown(head, rows)]
    return "\n".join(lines)


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    rates = {
        f"{locks:,} locks": {
            name: statistics.median(values)
            for name in names_of(records)
            if (values := values_of(records, name, "renewals_per_s", locks=locks))
        }
        for locks in numbers(records)
    }
    plot.bars(
        folder / "saturated-rate.svg",
        rates,
        title="Renewals a second, if all are always due",
        y="renewals/s",
        better="more",
    )
    return {
        "saturated-rate.svg": "Renewals a second of the library, and of redis-benchmark with the same script calls."
    }


SCENARIO = Scenario("saturated", "Renewals without a pause", "held", measure, tables, draw)
