"""What a run does anew each time: a share of a long row of places, and not the same share as the run before.

``TESTS_SEED`` repeats a run, its seeds of the simulation too; ``EVERY_PLACE=1`` goes to all places (``make every-place``).
"""

from __future__ import annotations

import os
import random

SEED = os.environ.setdefault("TESTS_SEED", str(random.randrange(1_000_000)))
ALL = bool(os.environ.get("EVERY_PLACE"))


def dice() -> random.Random:
    """Return the dice of the running test."""
    return random.Random(f"{SEED} {os.environ.get('PYTEST_CURRENT_TEST', '').partition(' ')[0]}")


def some_of(count: int, most: int) -> range:
    """Return every k-th of a row of places, so that few more than ``most`` remain, from a first one that is drawn."""
    step = 1 if ALL else max(1, count // most)
    return range(dice().randrange(step), count, step)
