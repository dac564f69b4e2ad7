"""Histories from new seeds, for a while, or the history of one seed.

python -m tests.simulation --seconds 600 --jobs 2      # make simulate SECONDS=600 JOBS=2
python -m tests.simulation --seed 123                  # make simulate SEED=123: this one, with its story, made small
python -m tests.simulation --tape failure.json         # a tape that was made small
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.simulation.mutants.mutant import digest
from tests.simulation.record import ALWAYS, RULES
from tests.simulation.shrink import Streams, shrink
from tests.simulation.world import World, history

SEEDS = Path(__file__).with_name("seeds.txt")
_BUILD = Path("build")
_SHRINK_S = 60.0
_PROGRESS_S = 10.0  # interval of progress lines on a terminal
_FULL_RUN = 1000  # histories in which each rule must be exercised
_YEAR_S = 365.25 * 24 * 3600


@dataclass
class Report:
    """What a number of histories have shown.

    Attributes:
        code: The digest of the package, in a report that is kept.
        seeds: The first and the last one of each run.
        failed: The seed of the first history that broke a rule.
    """

    code: str = ""
    seeds: list[tuple[int, int]] = field(default_factory=list)
    histories: int = 0
    steps: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    exercised: Counter[str] = field(default_factory=Counter)
    failed: int | None = None

    def add(self, world: World) -> None:
        self.histories += 1
        self.steps += world.steps
        self.simulated_s += world.scheduler.now
        self.faults.update(world.faults)
        self.exercised.update(world.rules.exercised)

    def merge(self, other: Report) -> None:
        self.seeds += other.seeds
        self.histories += other.histories
        self.steps += other.steps
        self.simulated_s += other.simulated_s
        self.cpu_s += other.cpu_s
        self.faults.update(other.faults)
        self.exercised.update(other.exercised)
        if self.failed is None:
            self.failed = other.failed

    def lines(self, took_s: float) -> Iterator[str]:
        yield (
            f"{self.histories} histories, {self.steps} steps in {took_s:.1f} s: {self.histories / took_s:.1f} a second "
            f"({self.histories / self.cpu_s:.1f} for each of the processor's), {self.simulated_s / took_s:.0f} x real time"
            f", {self.simulated_s / _YEAR_S:.4f} years"
        )
        yield "faults: " + ", ".join(f"{name} {number}" for name, number in sorted(self.faults.items()))
        for rule, text in RULES.items():
            if rule in ALWAYS:
                continue
            yield f"  {rule:>9} exercised {self.exercised[rule]:8} times: {text}"

    def keep(self, path: Path) -> None:
        """Write the report, together with what the file has of other runs of the same package."""
        whole = Report(digest())
        if path.exists() and (kept := json.loads(path.read_text())).get("code") == whole.code:
            faults, exercised = Counter(kept.pop("faults")), Counter(kept.pop("exercised"))
            whole = Report(**kept, faults=faults, exercised=exercised)
        whole.merge(self)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(vars(whole)))

    @property
    def idle(self) -> list[str]:
        """The rules that never had a chance."""
        return [rule for rule in RULES if rule not in ALWAYS and not self.exercised[rule]]


def simulate(seeds: Iterable[int], seconds: float, clock: Callable[[], float] = time.monotonic) -> Report:
    """Let histories happen, for so many seconds of a clock or until one breaks a rule."""
    report, until, began = Report(), clock() + seconds, time.process_time()
    gc.freeze()  # what is there already is not scanned after each history
    for seed in seeds:
        if _breaks_a_rule(seed, report):
            report.failed = seed
            break
        if clock() >= until:
            break
    gc.unfreeze()
    report.cpu_s = time.process_time() - began
    return report


def _breaks_a_rule(seed: int, report: Report) -> bool:
    """Let a history happen. Nothing refers to its world afterwards, so the next one does not collect around it."""
    world = history(seed)
    report.add(world)
    return bool(world.rules.violations)


class Seeds:
    """The seeds from a first one on, taken by several processes until one of these has failed."""

    taken: Any  # how many; for each process its parent's
    failed: Any

    @classmethod
    def share(cls, taken: Any, failed: Any) -> None:
        os.nice(10)
        cls.taken, cls.failed = taken, failed

    @classmethod
    def part(cls, first: int, seconds: float, clock: Callable[[], float]) -> Report:
        """Let the histories happen of those that this process takes."""
        report = simulate(cls._take(first), seconds, clock)
        if report.failed is not None:
            cls.failed.value = True
        return report

    @classmethod
    def _take(cls, first: int) -> Iterator[int]:
        while not cls.failed.value:
            with cls.taken.get_lock():
                cls.taken.value += 1
                seed = first + cls.taken.value - 1
            yield seed


def simulate_in_processes(jobs: int, first: int, seconds: float, clock: Callable[[], float]) -> Report:
    """The same in several processes, with a line now and then for who waits at a terminal."""
    report, began, fork = Report(), time.monotonic(), get_context("fork")
    taken, failed = fork.Value("q", 0), fork.Value("b", 0)
    with ProcessPoolExecutor(jobs, fork, Seeds.share, (taken, failed)) as pool:
        parts = [pool.submit(Seeds.part, first, seconds, clock) for _ in range(jobs)]
        waiting: set[Future[Report]] = set(parts)
        while waiting:
            waiting = wait(waiting, timeout=_PROGRESS_S).not_done
            if waiting and sys.stdout.isatty():
                took_s, found = time.monotonic() - began, "a rule is broken" if failed.value else "no rule is broken"
                rate = taken.value / took_s
                print(f"{took_s:6.0f} s: {taken.value} histories, {rate:.1f} a second, {found}", flush=True)
        for part in parts:
            report.merge(part.result())
    return report


def kept_seeds() -> list[int]:
    """Return the seeds that have failed once, and run for ever."""
    lines = SEEDS.read_text().splitlines() if SEEDS.exists() else []
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def tell(world: World) -> None:
    """Print a history as a story."""
    for at, text, arguments in world.scheduler.story:
        print(f"{at:9.4f}  {text % arguments}")
    if world.rules.failure is not None:
        traceback.print_exception(world.rules.failure)


def tell_failure(seed: int, recorded: Streams | None, shrink_s: float) -> None:
    """Print a failure as a short story, and keep its tape."""
    world = history(seed, recorded)
    if not world.rules.violations:
        print(f"seed {seed} breaks no rule; tape {world.digest}")
        return
    rule = world.rules.violations[0][1]

    def fails(streams: Streams) -> Streams | None:
        again = history(seed, streams)
        same = bool(again.rules.violations) and again.rules.violations[0][1] == rule
        return again.tape.recorded if same else None

    small = shrink(world.tape.recorded, fails, shrink_s)
    path = _BUILD / f"simulation-{seed}.json"
    _BUILD.mkdir(exist_ok=True)
    path.write_text(json.dumps({"seed": seed, "streams": small}))
    print(f"\nseed {seed} breaks {rule}; its smallest tape, {sum(map(len, small.values()))} choices, is in {path}:")
    tell(history(seed, small))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", type=int, dest="first", help="the first of the seeds; by default drawn by TESTS_SEED")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="count seconds of the processor: on a busy machine")
    parser.add_argument("--tape", type=Path)
    parser.add_argument("--report", type=Path, help="where the figures of all runs of one package are kept")
    parser.add_argument("--shrink", type=float, default=_SHRINK_S, help="seconds for making a failure small")
    arguments = parser.parse_args()
    if arguments.tape is not None:
        kept = json.loads(arguments.tape.read_text())
        tell(history(kept["seed"], kept["streams"]))
        return 0
    if arguments.seed is not None:
        tell_failure(arguments.seed, None, arguments.shrink)
        return 0
    drawn = random.Random(os.environ.get("TESTS_SEED")).randrange(1 << 48)
    first = drawn if arguments.first is None else arguments.first
    print(f"seeds from {first}", flush=True)
    began = time.monotonic()
    clock = time.process_time if arguments.cpu else time.monotonic
    report = simulate_in_processes(arguments.jobs, first, arguments.seconds, clock)
    report.seeds = [(first, first + report.histories - 1)]
    print(f"seeds from {first} to {first + report.histories - 1}")
    print("\n".join(report.lines(time.monotonic() - began)), flush=True)
    if arguments.report is not None:
        report.keep(arguments.report)
    if report.failed is not None:
        tell_failure(report.failed, None, arguments.shrink)
        return 1
    if report.idle:
        print(f"these rules never had a chance: {', '.join(report.idle)}")
        return report.histories >= _FULL_RUN
    return 0


if __name__ == "__main__":
    sys.exit(main())
