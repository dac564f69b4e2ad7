"""Rounds in which implementations take turns, in another order each time, and tables of what is found in them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from bench import page
from bench.plot import OURS
from bench.rivals import Rival
from bench.scenarios import Record, Run, failed, found, skipped, spread, values_of
from bench.workers import Unable

UP_S = 120.0
"""Seconds within which a worker has to be ready."""


class Side(Protocol):
    """The workers of an implementation, which have been started."""

    def ready(self) -> None:
        """Wait until they can be measured."""

    def measure(self) -> Mapping[str, Any]:
        """Have them work, and return the values of a round."""


class _Place:
    """One implementation in the rounds; it is out when it fails."""

    side: Side

    def __init__(self, rival: Rival, stack: ExitStack) -> None:
        self.rival, self.stack, self.out = rival, stack, False


def in_rounds(
    run: Run, case: Mapping[str, Any], start: Callable[[Rival, ExitStack], Side], rounds: int | None = None
) -> Iterator[Record]:
    """Start a side for each implementation, then measure them one after the other in each round.

    Args:
        run: How it is to be measured.
        case: That of the records.
        start: Starts a side; the stack ends it, at the end of the rounds or when it fails.
        rounds: How many, if not those of the run.
    """
    rounds = rounds or run.rounds
    with ExitStack() as stack:
        places = [_Place(rival, stack.enter_context(ExitStack())) for rival in run.rivals]

        def begin(place: _Place) -> None:
            place.side = start(place.rival, place.stack)

        steps: list[Callable[[_Place], Any]] = [begin, lambda place: place.side.ready()]
        steps += [lambda place: place.side.measure()] * rounds
        for number, step in enumerate(steps, -1):
            if number:
                how_far = f"round {number} of {rounds}" if number > 0 else "start"
                run.say(f"{', '.join(map(str, case.values()))}: {how_far}")
            first = max(number - 1, 0) % len(places)
            for place in [*places[first:], *places[:first]]:
                if place.out:
                    continue
                try:
                    values = step(place)
                except Exception as error:
                    place.out = True
                    place.stack.close()  # what hangs there must not go on beside the others
                    yield (skipped if isinstance(error, Unable) else failed)(place.rival, case, str(error))
                else:
                    if number > 0:
                        yield found(place.rival, case, number, values)


def cases(records: Sequence[Record], key: str) -> list[Any]:
    """Return the values of a case's key, in the order in which they were measured."""
    return list(dict.fromkeys(record["case"][key] for record in records))


def implementations(records: Sequence[Record]) -> list[str]:
    """Return the names: ours, then those with values, then what was skipped or failed everywhere."""
    there = [record["rival"] for record in records if "values" in record]
    names = dict.fromkeys([*there, *(record["rival"] for record in records)])
    return sorted(names, key=lambda name: name != OURS)


def medians(records: Sequence[Record], key: str, **case: Any) -> dict[str, float]:
    """Return the median of a value over the rounds, by implementation."""
    values = {name: values_of(records, name, key, **case) for name in implementations(records)}
    return {name: statistics.median(some) for name, some in values.items() if some}


def table(records: Sequence[Record], columns: Mapping[str, str], **case: Any) -> str:
    """Return a table of a case: a row for each implementation, medians and extremes of the values with these keys."""
    rows = []
    for name in implementations(records):
        mine = [
            record
            for record in records
            if record["rival"] == name and all(record["case"].get(key) == value for key, value in case.items())
        ]
        for why in ("skipped", "failed"):
            if reasons := [record[why] for record in mine if why in record]:
                rows.append([name, f"{why}: {reasons[0]}", *[""] * (len(columns) - 1)])
                break
        else:
            if mine:
                rows.append([name, *(spread(values_of(mine, name, key)) for key in columns)])
    return page.markdown(["", *columns.values()], rows)


def ahead(records: Sequence[Record], key: str, what: str, *, less: bool = False, **case: Any) -> str:
    """Return a sentence that names the implementations whose median of a value is better than ours.

    Args:
        records: All records.
        key: The value.
        what: Its name in the sentence.
        less: True if less is better.
        case: Which of the records.
    """
    values = medians(records, key, **case)
    ours = values.get(OURS)
    if not ours:
        return ""
    factors = {name: ours / value if less else value / ours for name, value in values.items() if value}
    better = sorted(((factor, name) for name, factor in factors.items() if factor > 1), reverse=True)
    if not better:
        return f"None is ahead of {OURS} in {what}."
    return f"Ahead of {OURS} in {what}: {', '.join(f'{name} ({factor:.2f} times)' for factor, name in better)}."
