"""All runs of a scene with one forced switch, all with two, and runs with many; where they are too many a sample.

``THREADS_RUNS`` says how many of each kind, and ``THREADS_SEED`` which. A run that fails prints its schedule, which
``THREADS_SCHEDULE`` repeats.
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

SAMPLE = int(os.environ.get("THREADS_RUNS", "120"))
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
    finally:
        for call in stage.at_end:
            call()
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

    def sample(all_of_them: list[Schedule], most: int) -> list[Schedule]:
        return all_of_them if len(all_of_them) <= most else luck.sample(all_of_them, most)

    luck = random.Random(SEED)
    if SCHEDULE:
        made(eval(SCHEDULE, {"Schedule": Schedule}))
        return runs
    with without_collection():  # finalisers of other tests' objects are not part of it
        plain = [Schedule(first) for first in range(threads)]
        once = sample([each for schedule in plain for each in with_one_more(made(schedule), schedule)], SAMPLE)
        for number, schedule in enumerate(once):
            share = SAMPLE * (number + 1) // len(once) - SAMPLE * number // len(once)
            for each in sample(with_one_more(made(schedule), schedule), share):
                made(each)
        for number in range(SAMPLE // 2):
            made(Schedule(number % threads, dice=SEED * 1_000_000 + number))
    return runs


def interrupt_everywhere(scene: Scene, victim: int, *modules: ModuleType, everywhere: bool = False) -> list[str]:
    """Make a run for each place at which one thread can be interrupted; return these places."""
    places: list[str] = []
    with without_collection():
        while True:
            stage = play(scene, Schedule(interrupt=(victim, len(places))), *modules, everywhere=everywhere)
            if not stage.interrupted:
                return places
            places.append(stage.story[-1])
