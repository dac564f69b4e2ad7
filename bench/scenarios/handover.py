"""Hand-over between two processes: from the call of release() in one to the return of acquire() in the other.

The two take turns: each holds the lock for a few milliseconds, so that the other one waits by then, and releases it.
CLOCK_MONOTONIC is one clock for all processes of a machine.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario
from bench.scenarios.rounds import UP_S, ahead, in_rounds, medians, table
from bench.workers import Worker
from tests.support.redis_server import RedisServer

HOLD_S = 0.004
PATIENCE_S = 60.0
TRIAL = 2  # turns of each
HOW = f"""\
Two processes take turns with one lock: the time from the call of `release()` in one to the return of `acquire()` in the
other, which waits. Each holds the lock for {HOLD_S * 1000:g} ms. Medians and extremes of the rounds."""
BARE = """\
The bare minimum is SET, DEL with PUBLISH in one script, and a blocking read of the subscription: it has neither owner
nor renewal nor time limit."""


class Players:
    """Two processes that hand a lock over to each other.

    Args:
        rival: The implementation.
        stack: Ends them.
        turns: Of each process in a round.
        limit_s: Seconds that a round may take: whatever is slow has fewer turns.
        warm_s: How long they do so before they are measured.
    """

    def __init__(self, rival: Rival, stack: ExitStack, turns: int, limit_s: float = 10.0, warm_s: float = 0.0) -> None:
        self._turns, self._limit_s, self._warm_s = turns, limit_s, warm_s
        server = stack.enter_context(RedisServer())
        options = json.dumps({"name": "h", "timeout_s": 30.0, "hold_s": HOLD_S})
        command = [*rival.command(), "handover", server.url, options]
        self._players = [stack.enter_context(Worker(command)) for _ in range(2)]

    def ready(self) -> None:
        for player in self._players:
            player.answer(UP_S)
        until, took_s = time.monotonic() + self._warm_s, list[float]()
        while not took_s or time.monotonic() < until:
            began = time.monotonic()
            self._take_turns(TRIAL)
            took_s.append(time.monotonic() - began)
        turn_s = statistics.median(took_s) / TRIAL
        self._turns = max(min(self._turns, int(self._limit_s / turn_s)), TRIAL)

    def measure(self) -> dict[str, Any]:
        delays_ms = [delay * 1000 for delay in self._take_turns(self._turns)]
        return {
            "p50_ms": _quantile(delays_ms, 0.5),
            "p99_ms": _quantile(delays_ms, 0.99),
            "most_ms": delays_ms[-1],
            "hand_overs": len(delays_ms),
        }

    def _take_turns(self, turns: int) -> list[float]:
        """Return how long the lock took from one to the other, each time, in order of size."""
        for player in self._players:
            player.tell(f"go {turns}")
        moments = sorted(
            (granted, released, number)
            for number, player in enumerate(self._players)
            for granted, released in player.answer(self._limit_s + PATIENCE_S)["moments"]
        )
        return sorted(after[0] - before[1] for before, after in itertools.pairwise(moments) if before[2] != after[2])


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def measure(run: Run) -> Iterator[Record]:
    turns, limit_s = run.pick((250, 10.0), (60, 1.5), (3, 0.5))

    def start(rival: Rival, stack: ExitStack) -> Players:
        return Players(rival, stack, turns, limit_s, run.pick(rival.warm_s, rival.warm_s, 0.0))

    yield from in_rounds(run, {"what": "hand-over between two processes"}, start)


def tables(records: Sequence[Record]) -> str:
    columns = {"p50_ms": "p50, ms", "p99_ms": "p99, ms", "most_ms": "longest, ms", "hand_overs": "hand-overs a round"}
    return "\n".join([HOW, "", table(records, columns), "", ahead(records, "p50_ms", "p50", less=True), BARE])


def draw(records: Sequence[Record], folder: Path) -> dict[str, str]:
    values = {"p50": medians(records, "p50_ms"), "p99": medians(records, "p99_ms")}
    plot.bars(
        folder / "handover-delay.svg",
        values,
        title="Hand-over between two processes",
        y="ms",
        better="less",
        log_y=True,
    )
    return {
        "handover-delay.svg": "Time from a release in one process to the grant in another that waits, in milliseconds."
    }


SCENARIO = Scenario("handover", "Hand-over between processes", "waiters", measure, tables, draw, mode="handover")
