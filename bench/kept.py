"""What a keeper costs the processes that use it, while nothing crashes: the same with one and without, in turns.

    python -m bench.kept [--rounds 5] [--locks 100000] [--tiny]

Pairs of acquire and release on one thread, which is on the direct path, on 64 threads and in 500 tasks, renewals, and the
acquire of many locks. The keeper is one of the host, and the processes find it by WHEEL_LOCK_KEEPER. What a crash costs is
measured by bench.crashed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.page import machine, markdown
from bench.rivals import Rival
from bench.scenarios import Record, Run, number, spread, values_of
from bench.scenarios.pairs import measure as measure_pairs
from bench.scenarios.rounds import UP_S, in_rounds, medians
from bench.scenarios.saturated import library
from bench.workers import Worker, cpu_s, python, rss_and_threads
from tests.keeper.rig import HostKeeper
from tests.support.redis_server import RedisServer

OFF, ON = "without a keeper", "with one"
BULK_TIMEOUT_S = 3.0
COLUMNS = {"pairs_s": "pairs/s", "renewals_per_s": "renewals/s", "locks_s": "locks/s", "client_us": "CPU, us each"}


class Renewals:
    """A worker that renews all the time."""

    def __init__(self, rival: Rival, stack: ExitStack, locks: int, seconds: float) -> None:
        self._seconds = seconds
        self._window = stack.enter_context(library(locks, *rival.command()))

    def ready(self) -> None: ...

    def measure(self) -> dict[str, float]:
        return self._window(self._seconds)


class Bulk:
    """A worker that acquires many locks in one call, a new one in each round."""

    def __init__(self, rival: Rival, stack: ExitStack, locks: int) -> None:
        self._before, self._locks = rival.command(), locks

    def ready(self) -> None: ...

    def measure(self) -> dict[str, Any]:
        with RedisServer() as server:
            command = python("bench.targets.bulk", server.port, 1, self._locks, BULK_TIMEOUT_S)
            with Worker([*self._before, *command]) as worker:
                worker.answer(UP_S)
                used_s = cpu_s(worker.pid)
                acquired = worker.ask()
                values = {
                    "locks_s": acquired["locks/s"],
                    "client_us": (cpu_s(worker.pid) - used_s) / self._locks * 1e6,
                    "rss": rss_and_threads(worker.pid)[0],
                }
                server.kill()  # else the keeper would release all of that during the next turns
        return values


def measure(run: Run, environment: Path, locks: int) -> Iterator[Record]:
    """Measure each case in rounds; the records are those of the benchmark suite."""

    def before(where: str) -> list[str]:
        return ["env", f"WHEEL_LOCK_KEEPER={where}"] if where else ["env"]

    sides = {OFF: "", ON: str(environment)}
    worker = python("bench.rivals.worker", "wheel_lock")
    callers = [Rival(name, partial(list, [*before(where), *worker])) for name, where in sides.items()]
    others = [Rival(name, partial(before, where)) for name, where in sides.items()]
    yield from measure_pairs(Run(callers, full=run.full, tiny=run.tiny, rounds=run.rounds))
    run = Run(others, full=run.full, tiny=run.tiny, rounds=run.rounds)
    window = partial(Renewals, locks=locks, seconds=run.pick(5.0, 2.0, 0.3))
    yield from in_rounds(run, {"what": f"renewals of {locks:,} locks"}, window)
    yield from in_rounds(run, {"what": f"{locks:,} locks in a call"}, partial(Bulk, locks=locks))


def table(records: list[Record], locks: int) -> str:
    """Return medians and extremes with a keeper and without, and the ratio of the medians."""
    rows = []
    for case in list(dict.fromkeys(tuple(record["case"].items()) for record in records)):
        mine = [record for record in records if tuple(record["case"].items()) == case]
        for key, what in COLUMNS.items():
            values = medians(mine, key)
            if OFF in values and ON in values:
                texts = [spread(values_of(mine, side, key)) for side in (OFF, ON)]
                rows.append([str(case[0][1]), what, *texts, f"{values[ON] / values[OFF]:.3f}"])
    lines = [markdown(["", "", OFF, ON, "ratio"], rows)]
    resident = medians(records, "rss")
    if OFF in resident and ON in resident:
        lines += ["", f"{number((resident[ON] - resident[OFF]) / locks)} bytes of the process for each lock."]
    return "\n".join([*lines, *(f"{record['rival']}: {record['failed']}" for record in records if "failed" in record)])


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kept", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which both sides take turns")
    parser.add_argument("--locks", type=int, default=100_000, help="locks that are renewed, and acquired in a call")
    parser.add_argument("--tiny", action="store_true", help="times so short that only the program is tested")
    arguments = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        keeper = HostKeeper(Path(folder))
        stack.callback(keeper.kill)
        keeper.start()
        run = Run((), full=not arguments.tiny, tiny=arguments.tiny, rounds=arguments.rounds)
        records = list(measure(run, Path(keeper.path), arguments.locks))
    print(f"{machine()}, medians and extremes of {arguments.rounds} rounds\n")
    print(table(records, arguments.locks))
    return int(any("failed" in record for record in records))


if __name__ == "__main__":
    sys.exit(main())
