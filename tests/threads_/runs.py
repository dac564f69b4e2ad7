"""All runs of a scene with up to two forced switches, or a sample of them, drawn by seed; then runs with many switches.

``THREADS_RUNS`` says how many of each, and ``THREADS_SEED`` which: a scene that all runs are made of has more of them than
a check has time for. A run that fails prints its schedule, which ``THREADS_SCHEDULE`` repeats.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from types import ModuleType

from tests.support.backend import without_collection
from tests.threads_.scheduler import Schedule, Stage
from tests.threads_.seams import seams

SAMPLE = int(os.environ.get("THREADS_RUNS", "400"))
SEED = int(os.environ.get("THREADS_SEED", "1"))
SCHEDULE = os.environ.get("THREADS_SCHEDULE", "")

Scene = Callable[[Stage], Callable[[], object]]
"""Adds the threads of a run, and returns what checks its outcome."""


def play(scene: Scene, schedule: Schedule, *modules: ModuleType, everywhere: bool = False) -> Stage:
    """Make one run, and check its outcome."""
    stage = Stage(schedule, modules, everywhere=everywhere)
    try:
        with seams(stage):
            check = scene(stage)
            stage.run()
            check()
    except BaseException as error:
        exact = schedule._replace(switches=tuple(stage.switched), dice=-1)
        error.add_note("\n".join([f"THREADS_SCHEDULE='{exact!r}' repeats it:", *stage.story]))
        raise
    return stage


def explore(scene: Scene, *modules: ModuleType, threads: int = 2) -> int:
    """Make the runs of a scene; return their number."""
    runs = 0

    def made(schedule: Schedule) -> Stage:
        nonlocal runs
        runs += 1
        return play(scene, schedule, *modules)

    def with_one_more(stage: Stage, schedule: Schedule) -> list[Schedule]:
        more = itertools.product(stage.open, range(1, threads))
        return [schedule._replace(switches=(*schedule.switches, switch)) for switch in more]

    if SCHEDULE:
        made(eval(SCHEDULE, {"Schedule": Schedule}))
        return runs
    luck = random.Random(SEED)
    with without_collection():  # finalisers of other tests' objects are no part of it
        plain = [Schedule(first) for first in range(threads)]
        once = [each for schedule in plain for each in with_one_more(made(schedule), schedule)]
        # Of each of these, as many with a second switch as leaves the sample in all.
        share = max(SAMPLE // max(len(once), 1), 1)
        for schedule in once:
            twice = with_one_more(made(schedule), schedule)
            for each in twice if len(twice) <= share else luck.sample(twice, share):
                made(each)
        for number in range(SAMPLE // 2):
            made(Schedule(number % threads, dice=SEED * 1_000_000 + number))
    return runs


def strike_everywhere(scene: Scene, victim: int, *modules: ModuleType, everywhere: bool = False) -> list[str]:
    """Make a run for each place at which one thread can be struck; return these places."""
    places: list[str] = []
    with without_collection():
        while True:
            stage = play(scene, Schedule(strike=(victim, len(places))), *modules, everywhere=everywhere)
            if not stage.struck:
                return places
            places.append(stage.story[-1])
