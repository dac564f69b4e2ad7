"""What it costs to keep N locks alive: CPU, commands, bytes, memory, threads, and losses."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench import page, plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario, failed, found, number, skipped, spread, values_of, why_not
from bench.scenarios.rounds import implementations
from bench.scenarios.saturated import benchmark, redis_benchmark
from bench.workers import Worker, cpu_s, rss_and_threads
from tests.support.redis_server import RedisServer

PREFIX = "held:"
LONG_S = 30.0
"""The timeout from which each number of locks has a table of its own; shorter ones share one."""

LIMIT = Rival(plot.LIMIT, tuple)
"""The same script calls, encoded once and sent without a pause."""

LOOK = """
local cursor, left, least = '0', 0, -1
repeat
  local found = redis.call('scan', cursor, 'match', ARGV[1], 'count', 1000)
  cursor = found[1]
  for _, key in ipairs(found[2]) do
    local pttl = redis.call('pttl', key)
    if pttl ~= -2 then left = left + 1 end
    if pttl >= 0 and (least < 0 or pttl < least) then least = pttl end
  end
until cursor == '0'
return {left, least}
"""
"""Counts the keys of locks, and finds the least time-to-live in ms (-1: none). The clock stands still in a script, so that
nothing expires between the first key and the last."""

_RENEWING = ("expire", "pexpire", "expireat", "pexpireat", "set")  # nothing is acquired meanwhile
_ERRORS = (RuntimeError, OSError, redis.RedisError)


@dataclass(frozen=True)
class Case:
    """So many locks, their timeout, and the least length of a window."""

    locks: int
    timeout_s: float
    least_s: float = 4.0

    @property
    def key(self) -> dict[str, Any]:
        return {"locks": self.locks, "timeout_s": self.timeout_s}

    @property
    def interval_s(self) -> float:
        return self.timeout_s / 3

    @property
    def window_s(self) -> float:
        """The length of a window: an interval, so that each lock is due once in it, or several short ones."""
        return self.interval_s * math.ceil(self.least_s / self.interval_s)


def cases(run: Run) -> list[Case]:
    if run.tiny:
        return [Case(locks, 3.0, least_s=2.0) for locks in (20, 50)]
    if not run.full:
        return [*(Case(locks, 30.0) for locks in (1_000, 10_000, 100_000)), Case(10_000, 10.0)]
    numbers = (1_000, 10_000, 100_000, 1_000_000)
    return [Case(locks, timeout_s) for timeout_s in (30.0, 10.0, 3.0) for locks in numbers] + [Case(5_000_000, 60.0)]


def at_once(run: Run, case: Case) -> int:
    """Return how many implementations are measured at the same time: two cores are to be enough for all of them."""
    renewals: int = run.pick(4_000, 30_000, 30_000)  # a second, of all together
    return max(int(renewals * case.interval_s / case.locks), 1)


def measure(run: Run) -> Iterator[Record]:
    beaten: dict[tuple[str, float], str] = {}
    for case in cases(run):
        able = []
        for rival in run.rivals:
            if "hold" not in rival.modes:
                continue
            if case.locks > rival.most_held:
                yield skipped(rival, case.key, f"not tried above {rival.most_held:,}")
            elif (why := beaten.get((rival.name, case.timeout_s))) is not None:
                yield skipped(rival, case.key, why)
            else:
                able.append(rival)
        size = at_once(run, case)
        for first in range(0, len(able), size):
            some = able[first : first + size]
            run.say(f"held: {case.locks:,} of {case.timeout_s:g} s: {', '.join(rival.name for rival in some)}")
            for record in together(run, case, some):
                if "failed" in record:
                    beaten[record["rival"], case.timeout_s] = f"failed with {case.locks:,}"
                yield record
    yield from limits(run)


def limits(run: Run) -> Iterator[Record]:
    """Measure what the calls for as many locks cost a program that does nothing but send them."""
    program = redis_benchmark()
    timeout_s = min(LONG_S, max(case.timeout_s for case in cases(run)))
    for case in cases(run):
        if program is not None and case.timeout_s == timeout_s:
            run.say(f"held: {case.locks:,}: {LIMIT.name}")
            with benchmark(program, case.locks) as window:
                costs = window(run.pick(5.0, 2.0, 0.3))
            values = {f"{side}_s_per_renewal": costs[f"{side}_us"] / 1e6 for side in ("client", "server")}
            yield found(LIMIT, case.key, 0, values)


def together(run: Run, case: Case, rivals: Sequence[Rival]) -> Iterator[Record]:
    """Measure implementations at the same time."""
    sides: list[Side] = []
    patience_s = max(run.pick(60.0, 30.0, 30.0), 120.0 * case.locks / 1_000_000)
    with ExitStack() as stack:
        for rival in rivals:
            try:
                sides.append(stack.enter_context(Side(rival, case)))
            except _ERRORS as error:
                yield failed(rival, case.key, error)
        until = time.monotonic() + patience_s

        def on_each(step: Any) -> Iterator[Record]:
            for side in tuple(sides):
                try:
                    step(side)
                except _ERRORS as error:
                    sides.remove(side)
                    side.close()  # what it still does would cost the others
                    yield failed(side.rival, case.key, error)

        yield from on_each(lambda side: side.come_up(until))
        time.sleep(run.pick(case.interval_s, min(case.interval_s, 4.0), 1.0))
        yield from on_each(Side.begin)
        rounds = run.pick(min(run.rounds, 3), 1, 1)
        for count in range(rounds):
            time.sleep(case.window_s)
            yield from on_each(lambda side, last=count == rounds - 1: side.look(last))
        for side in sides:
            for index, values in enumerate(side.rounds):
                yield found(side.rival, case.key, index, values)


class Side:
    """An implementation that holds its locks at a server of its own."""

    def __init__(self, rival: Rival, case: Case) -> None:
        self.rival = rival
        self.rounds: list[dict[str, Any]] = []
        self._case = case
        self._stack = ExitStack()

    def __enter__(self) -> Side:
        with ExitStack() as stack:
            self._server = stack.enter_context(RedisServer())
            self._client = self._server.client(socket_timeout=120.0)
            before = self._traffic()
            self._own = {name: value - before[name] for name, value in self._traffic().items()}
            options = {"locks": self._case.locks, "timeout_s": self._case.timeout_s, "prefix": PREFIX, "first": 0}
            command = [*self.rival.command(), "hold", self._server.url, json.dumps(options | dict(self.rival.options))]
            self._worker = stack.enter_context(Worker(command))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def come_up(self, until: float) -> None:
        """Wait until all locks are held.

        Raises:
            RuntimeError: Not until then.
        """
        self._worker.answer(max(until - time.monotonic(), 1.0))

    def begin(self) -> None:
        """Begin the first window."""
        self._before = self._counted()

    def look(self, last: bool) -> None:
        """End a window, and begin the next one, or see after the last one what has become of the locks."""
        after = self._counted()
        counted = {name: after[name] - self._before[name] - self._own.get(name, 0) for name in after}
        self._before = after
        renewals, seconds = counted.pop("renewals"), counted.pop("seconds")
        values: dict[str, Any] = {"renewals_per_s": renewals / seconds}
        values |= {f"{name}_per_s": value / seconds for name, value in counted.items()}
        if renewals:
            values |= {f"{name}_per_renewal": value / renewals for name, value in counted.items()}
        if last:
            values |= self._state()
        self.rounds.append(values)

    def _traffic(self) -> dict[str, float]:
        """Return what the server has counted. Asking costs something itself, which is measured at first."""
        stats: Any = self._client.info("stats")
        commands: Any = self._client.info("commandstats")
        return {
            "renewals": sum(commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in _RENEWING),
            "commands": stats["total_commands_processed"],
            "bytes_in": stats["total_net_input_bytes"],
            "bytes_out": stats["total_net_output_bytes"],
        }

    def _counted(self) -> dict[str, float]:
        return self._traffic() | {
            "client_s": cpu_s(self._worker.pid),
            "server_s": cpu_s(self._server.pid),
            "seconds": time.monotonic(),
        }

    def _state(self) -> dict[str, Any]:
        rss, threads = rss_and_threads(self._worker.pid)
        memory: Any = self._client.info("memory")
        said = self._worker.ask("go read")
        # Stopped, it renews nothing while the keys are counted.
        self._worker.stop()
        try:
            found: Any = self._client.eval(LOOK, 0, f"*{PREFIX}*")
        finally:
            self._worker.go_on()
        return {
            "rss": rss,
            "threads": threads,
            "heap": said["heap"],
            "server_memory": memory["used_memory"],
            "told": said["lost"],
            "gone": max(self._case.locks - found[0], 0),
            "least_ttl_s": found[1] / 1000 if found[1] >= 0 else None,
        }


def timeouts(records: Iterable[Record]) -> list[float]:
    return sorted({record["case"]["timeout_s"] for record in records}, reverse=True)


def numbers(records: Iterable[Record], timeout_s: float) -> list[int]:
    return sorted({record["case"]["locks"] for record in records if record["case"]["timeout_s"] == timeout_s})


def of_case(records: Iterable[Record], rival: str, case: Mapping[str, Any]) -> list[Record]:
    return [record for record in records if record["rival"] == rival and record["case"] == case]


def tables(records: Sequence[Record]) -> str:
    """Return what is known of each number of locks with a long timeout, and a summary of the shorter ones."""
    lines = [
        "Each implementation holds its locks in a process of its own, with a server of its own, and renews each every "
        "third of the timeout. When it has settled, for an interval in a full run, windows of an interval (at least 4 s) "
        "are measured; medians, and in brackets the least and the largest. CPU is that of all threads of the process, "
        "divided by the renewals that the server has executed (calls of PEXPIRE and its kind, or of SET): what a lock "
        "costs in a second is that, divided by the interval. Commands are those that the server has executed, in scripts "
        "too; bytes are those of a renewal. *Gone* are locks whose keys do not exist any more when the process is stopped "
        "after the last window, *told* those whose loss it has reported until then. Where all together would need more "
        "than two cores, few implementations, or a single one, are measured at a time.",
    ]
    long_s = min(LONG_S, max(timeouts(records), default=LONG_S))
    every = {(record["case"]["locks"], record["case"]["timeout_s"]) for record in records}
    for locks, timeout_s in sorted(case for case in every if case[1] >= long_s):
        table = _table(records, {"locks": locks, "timeout_s": timeout_s})
        lines += ["", f"{locks:,} locks of {timeout_s:g} s:", "", table]
    for timeout_s in (timeout_s for timeout_s in timeouts(records) if timeout_s < long_s):
        lines += [
            "",
            f"Timeouts of {timeout_s:g} s: CPU of client + server for a renewal in µs, and how many locks are gone:",
            "",
            _summary(records, timeout_s),
        ]
    return "\n".join(lines)


def _table(records: Sequence[Record], case: Mapping[str, Any]) -> str:
    head = ["", "client, µs", "server, µs", "commands/s", "bytes out + in", "RSS, MB", "threads", "gone", "told"]
    rows = []
    for rival in implementations(records):

        def of(key: str, scale: float = 1.0, rival: str = rival) -> list[float]:
            return [value * scale for value in values_of(records, rival, key, **case)]

        if of("commands_per_s"):
            sent, received = of("bytes_in_per_renewal"), of("bytes_out_per_renewal")
            rows.append(
                [
                    rival,
                    spread(of("client_s_per_renewal", 1e6)),
                    spread(of("server_s_per_renewal", 1e6)),
                    number(statistics.median(of("commands_per_s"))),
                    f"{statistics.median(sent):.0f} + {statistics.median(received):.1f}" if sent else "",
                    f"{of('rss')[0] / 2**20:,.0f}" + "".join(f" (heap {heap / 2**20:,.0f})" for heap in of("heap")),
                    f"{of('threads')[0]:,.0f}",
                    f"{of('gone')[0]:,.0f}",
                    f"{of('told')[0]:,.0f}",
                ]
            )
        elif costs := of("client_s_per_renewal", 1e6):  # the limit
            rows.append([rival, spread(costs), spread(of("server_s_per_renewal", 1e6)), *[""] * (len(head) - 3)])
        elif why := why_not(of_case(records, rival, case)):
            rows.append([rival, why, *[""] * (len(head) - 2)])
    return page.markdown(head, rows)


def _summary(records: Sequence[Record], timeout_s: float) -> str:
    rows = []
    for rival in implementations(records):
        row = [rival]
        for locks in numbers(records, timeout_s):
            case = {"locks": locks, "timeout_s": timeout_s}
            client = values_of(records, rival, "client_s_per_renewal", **case)
            server = values_of(records, rival, "server_s_per_renewal", **case)
            gone = values_of(records, rival, "gone", **case)
            if client:
                text = f"{number(statistics.median(client) * 1e6)} + {number(statistics.median(server) * 1e6)}"
                row.append(text + (f"; {gone[0]:,.0f} gone" if gone and gone[0] else ""))
            else:
                row.append(
                    f"all {gone[0]:,.0f} gone" if gone and gone[0] else why_not(of_case(records, rival, case))[:30]
                )
        rows.append(row)
    rows = [row for row in rows if any(row[1:])]
    return page.markdown(["", *(f"{locks:,}" for locks in numbers(records, timeout_s))], rows)


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    """Draw what a renewal costs the client and the server, and the client's memory, against the number of locks."""
    at = max((timeout_s for timeout_s in timeouts(records) if timeout_s <= LONG_S), default=LONG_S)

    def series(key: str, scale: float) -> dict[str, list[tuple[float, float]]]:
        return {
            rival: [
                (locks, statistics.median(values) * scale)
                for locks in numbers(records, at)
                if (values := values_of(records, rival, key, locks=locks, timeout_s=at))
            ]
            for rival in implementations(records)
        }

    every = f"each lock has a timeout of {at:g} s and is renewed every {at / 3:g} s"
    plots = {
        "client": ("client_s_per_renewal", 1e6, "CPU of the client for a renewal", "µs"),
        "server": ("server_s_per_renewal", 1e6, "CPU of the server for a renewal", "µs"),
        "memory": ("rss", 2**-20, "Memory of the client", "MB"),
    }
    drawn = {}
    for name, (key, scale, what, unit) in plots.items():
        file = f"held-{name}.svg"
        plot.lines(folder / file, series(key, scale), title=f"{what}, {unit}", x="locks held", y=unit)
        drawn[file] = f"{what} in {unit}, against the number of locks that are held; {every}."
    return drawn


SCENARIO = Scenario("held", "Locks that are held", "held", measure, tables, draw)
