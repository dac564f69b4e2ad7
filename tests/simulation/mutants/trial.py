"""Lets histories happen in a copied package: `python -m tests.simulation.mutants.trial --cpu 20 1 2 3`.

The last line is the result in JSON: which seed broke which rule, or none. With `--reach`, a line for each seed: the
seconds that it took, the rule that it broke, and the lines that it came to.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time

from tests.simulation.mutants.reach import reached, watch_scripts
from tests.simulation.world import history

_START_S = 3.0  # limit of the start of a process
_MOST_BYTES = 3 << 30


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", type=float, default=20.0)
    parser.add_argument("--reach", action="store_true")
    parser.add_argument("seeds", nargs="*", type=int)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    if arguments.reach:
        watch_scripts()
    began = time.process_time()
    gc.freeze()  # what is there already is not scanned after each history
    number = 0
    for number, seed in enumerate(arguments.seeds, start=1):
        reached.clear()
        start = time.process_time()
        world = history(seed)
        rule = world.rules.violations[0][1:] if world.rules.violations else None
        del world  # so the next one does not collect around it
        if arguments.reach:
            print(json.dumps([seed, time.process_time() - start, rule, reached]), flush=True)
        elif rule is not None:
            print(json.dumps({"seed": seed, "rule": rule[0], "text": rule[1][:300], "histories": number}))
            return 1
        if time.process_time() - began > arguments.cpu:
            break
    print(json.dumps({"seed": None, "histories": number}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
