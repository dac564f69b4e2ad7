"""How soon a loss is noticed with ``watch=True`` and without, and what watching costs.

    python -m bench.watched [--locks 100000] [--deleted 1000] [--timeout 30] [--seconds 30]

A process holds locks on a server of its own. After a while in which CPU times are measured some of the keys are deleted by
another client, one DEL each, in pipelines of 100; each delay is counted from before its pipeline is sent.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from bench.page import machine, markdown
from bench.status_line import StatusLine
from bench.workers import Loss, Worker, cpu_s, python, rss_and_threads, serve
from tests.support.redis_server import RedisServer
from wheel_lock import LockContext, LostEvent

TOGETHER = 100  # deletions in a pipeline
PAUSE_S = 0.01  # between two pipelines
PATIENCE_S = 60.0

LINE = StatusLine(sys.stderr)


class Figures(NamedTuple):
    """The result with one setting.

    Attributes:
        noticed: Losses that were reported within the time allowed for them.
        p50_s, p99_s, max_s: The delays of the reports, in seconds.
        client_cpu: The CPU time of the holder per second, while nothing is lost.
        server_cpu: That of the server.
        memory_bytes: ``used_memory`` of the server with all locks held.
        resident_bytes: The holder's resident memory.
    """

    noticed: int
    p50_s: float
    p99_s: float
    max_s: float
    client_cpu: float
    server_cpu: float
    memory_bytes: int
    resident_bytes: int


def name_of(number: int) -> str:
    return f"lock:{number:012d}"


def hold(url: str, *, locks: int, timeout: float, watch: bool) -> None:
    """Hold locks, and report losses, until the end of the input."""
    losses: list[Loss] = []

    def lost(event: LostEvent) -> None:
        losses.append(Loss(int(str(event.name).removeprefix("lock:")), time.monotonic(), str(event.reason)))

    def taken() -> list[Loss]:
        new = losses[:]
        del losses[: len(new)]
        return new

    with LockContext.from_url(url, watch=watch, release_on_close=False, response_timeout=60.0) as context:
        held = context.acquire_many(map(name_of, range(locks)), timeout=timeout, on_lost=lost)
        assert all(held.values())

        def answer(_: str) -> dict[str, Any]:
            stats = context.stats()
            return {"held": stats.held, "watching": stats.watching, "renewed": stats.renewed, "lost": stats.lost}

        serve(answer, taken)


def measure(arguments: argparse.Namespace, *, watch: bool) -> Figures:
    """Hold locks in a process of its own, delete some of them, and see when their losses are reported."""
    options = {"locks": arguments.locks, "timeout": arguments.timeout, "watch": watch}
    what = f"watch={watch}"
    LINE.say(f"{what}: {arguments.locks:,} locks are acquired")
    with RedisServer() as server, Worker(python("bench.watched", "hold", server.url, json.dumps(options))) as worker:
        view = server.client()
        worker.answer()
        settle(worker, watch, arguments)
        before = cpu_s(worker.pid), cpu_s(server.pid), time.monotonic()
        LINE.say(f"{what}: {arguments.seconds:g} s of renewals")
        time.sleep(arguments.seconds)
        seconds = time.monotonic() - before[2]
        client_cpu = (cpu_s(worker.pid) - before[0]) / seconds
        server_cpu = (cpu_s(server.pid) - before[1]) / seconds
        memory: Any = view.info("memory")
        LINE.say(f"{what}: {arguments.deleted:,} keys are deleted")
        deleted_at = delete(view, arguments)
        until = time.monotonic() + arguments.timeout + PATIENCE_S
        while len(worker.losses) < arguments.deleted and time.monotonic() < until:
            time.sleep(0.1)
            worker.ask()
        resident, _ = rss_and_threads(worker.pid)
    delays = sorted(loss.at - deleted_at[loss.index] for loss in worker.losses if loss.index in deleted_at)
    if len(worker.losses) != len(delays):
        raise RuntimeError(f"{len(worker.losses) - len(delays)} locks were reported lost that were not deleted")
    if not delays:
        raise RuntimeError("no loss was reported")
    LINE.say("")
    return Figures(
        noticed=len(delays),
        p50_s=quantile(delays, 0.5),
        p99_s=quantile(delays, 0.99),
        max_s=delays[-1],
        client_cpu=client_cpu,
        server_cpu=server_cpu,
        memory_bytes=memory["used_memory"],
        resident_bytes=resident,
    )


def settle(worker: Worker, watch: bool, arguments: argparse.Namespace) -> None:
    """Wait until all locks have been renewed once on average, and are registered."""
    until = time.monotonic() + arguments.timeout + PATIENCE_S
    while (said := worker.ask())["renewed"] < arguments.locks or said["watching"] is not watch:
        if time.monotonic() > until:
            raise RuntimeError(f"not ready: {said}")
        time.sleep(0.1)


def delete(view: redis.Redis, arguments: argparse.Namespace) -> dict[int, float]:
    """Delete keys; return when, by the number of the lock."""
    deleted_at: dict[int, float] = {}
    chosen = random.sample(range(arguments.locks), arguments.deleted)
    for start in range(0, len(chosen), TOGETHER):
        some = chosen[start : start + TOGETHER]
        pipeline = view.pipeline(transaction=False)
        for number in some:
            pipeline.delete(name_of(number))
        deleted_at.update(dict.fromkeys(some, time.monotonic()))
        pipeline.execute()
        time.sleep(PAUSE_S)
    return deleted_at


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values."""
    return values[min(int(share * len(values)), len(values) - 1)]


def table(figures: dict[bool, Figures]) -> str:
    """Return the figures with and without watching as a table."""
    head = [
        "`watch`",
        "noticed after, p50",
        "p99",
        "longest",
        "CPU of the client",
        "of the server",
        "memory of the server",
        "of the client",
    ]
    rows = [
        [
            str(watch),
            *[f"{seconds * 1000:,.1f} ms" for seconds in (found.p50_s, found.p99_s, found.max_s)],
            *[f"{share * 100:.2f} %" for share in (found.client_cpu, found.server_cpu)],
            *[f"{size / 1e6:,.1f} MB" for size in (found.memory_bytes, found.resident_bytes)],
        ]
        for watch, found in figures.items()
    ]
    return markdown(head, rows)


def main() -> int:
    if sys.argv[1:2] == ["hold"]:
        hold(sys.argv[2], **json.loads(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m bench.watched", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--locks", type=int, default=100_000, help="locks that are held")
    parser.add_argument("--deleted", type=int, default=1000, help="keys that are deleted")
    parser.add_argument("--timeout", type=float, default=30.0, help="the locks' timeout in seconds")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long CPU times are measured")
    arguments = parser.parse_args()
    figures = {watch: measure(arguments, watch=watch) for watch in (False, True)}
    print(machine())
    print(f"{arguments.locks:,} locks of {arguments.timeout:g} s, {arguments.deleted:,} deleted\n")
    print(table(figures))
    return int(any(found.noticed != arguments.deleted for found in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
