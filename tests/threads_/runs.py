"""All runs of a scene with one forced switch, all with two, and runs with many; where they are too many a sample.

``THREADS_RUNS`` says how many of each kind. ``THREADS_SEED`` says which; without it they are others each time. A run that
fails prints its schedule, which ``THREADS_SCHEDULE`` repeats.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from types import ModuleType

from tests.support import draws
from tests.support.backend import without_collection
from tests.threads_.scheduler import Schedule, Stage
from tests.threads_.seams import seams

SAMPLE = int(os.environ.get("THREADS_RUNS", "40"))
SEED = int(os.environ.get("THREADS_SEED", draws.SEED))
SCHEDULE = os.environ.get("THREADS_SCHEDULE", "")

_NEVER = 1_000_000

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
    """Make the runs of a scene; return in how many ways one forced switch can be made in it."""

    def made(schedule: Schedule) -> Stage:
        return play(scene, schedule, *modules)

    def with_one_more(stage: Stage, schedule: Schedule) -> list[Schedule]:
        more = itertools.product(stage.open, range(1, threads))
        return [schedule._replace(switches=(*schedule.switches, switch)) for switch in more]

    def sample(all_of_them: list[Schedule], most: int) -> list[Schedule]:
        return all_of_them if len(all_of_them) <= most else luck.sample(all_of_them, most)

    luck = random.Random(SEED)
    if SCHEDULE:
        made(eval(SCHEDULE, {"Schedule": Schedule}))
        return SAMPLE
    with without_collection():  # finalisers of other tests' objects are not part of it
        plain = [Schedule(first) for first in range(threads)]
        ways = [each for schedule in plain for each in with_one_more(made(schedule), schedule)]
        once = sample(ways, SAMPLE)
        for number, schedule in enumerate(once):
            share = SAMPLE * (number + 1) // len(once) - SAMPLE * number // len(once)
            for each in sample(with_one_more(made(schedule), schedule), share):
                made(each)
        for number in range(SAMPLE // 2):
            made(Schedule(number % threads, dice=SEED * 1_000_000 + number))
    return len(ways)


def interrupt(scene: Scene, victim: int, *modules: ModuleType, everywhere: bool = False) -> int:
    """Make a run for each of some places at which one thread can be interrupted; return how many there are."""

    def interrupted(nth: int) -> Stage:
        return play(scene, Schedule(interrupt=(victim, nth)), *modules, everywhere=everywhere)

    with without_collection():
        count = interrupted(_NEVER).places(victim)
        for nth in draws.some_of(count, SAMPLE):
            interrupted(nth)
    return count
