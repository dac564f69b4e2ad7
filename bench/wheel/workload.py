"""What is measured: locks of 30 s that are renewed every 10 s, in ticks of 10 ms. No implementation is known here."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence

from bench.wheel.schedulers import ADVANCE, CANCEL, OPERATIONS, SCHEDULE, Scheduler

SIZES = (1_000, 100_000, 1_000_000)
SPREAD = 1_000  # ticks over which the first deadlines lie, and from one deadline to the next


def deadlines(count: int, spread: int = SPREAD) -> list[int]:
    """Return ``count`` random ticks from 1 to ``spread``, the same ones each time."""
    choose = random.Random(2).randint
    return [choose(1, spread) for _ in range(count)]


def advance_and_rearm(scheduler: Scheduler, start: int, spread: int, count: int) -> None:
    """Go on by ``spread`` ticks, one by one: each timer is due once and is put in again."""
    fired = 0
    for tick in range(start + 1, start + spread + 1):
        fired += scheduler.advance_and_rearm(tick, spread)
    if fired != count:
        raise RuntimeError(f"{type(scheduler).__name__} fired {fired} of {count} timers")


def measure(
    kind: type[Scheduler], ticks: Sequence[int], spread: int, clock: Callable[[], float], laps: int = 1
) -> dict[str, float]:
    """Run one round and return the nanoseconds per timer of each operation.

    Garbage of whoever came before is collected first; the collector runs as it always does while the clock does.

    Args:
        kind: What to measure.
        ticks: The first deadline of each timer.
        spread: Ticks until each is due again.
        clock: A clock in seconds.
        laps: How many times to do it all, for few timers.
    """
    seconds = dict.fromkeys(kind.operations, 0.0)
    for _ in range(laps):
        scheduler = kind(len(ticks))
        gc.collect()
        try:
            for operation in OPERATIONS:
                if operation not in kind.operations:
                    continue
                if operation == CANCEL:
                    scheduler.shuffle()
                started = clock()
                if operation == SCHEDULE:
                    scheduler.schedule(ticks)
                elif operation == ADVANCE:
                    advance_and_rearm(scheduler, 0, spread, len(ticks))
                else:
                    scheduler.cancel()
                seconds[operation] += clock() - started
        finally:
            scheduler.close()
    return {operation: total / laps / len(ticks) * 1e9 for operation, total in seconds.items()}
