"""Making the tape of a failure small: streams, parts of them, and single choices are taken out, or set to zero."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

Streams = dict[str, list[int]]


def _without_zeros(streams: Streams) -> Streams:
    """Return the same choices: a stream that has ended goes on with zeros."""
    kept: Streams = {}
    for name, numbers in streams.items():
        end = len(numbers)
        while end and not numbers[end - 1]:
            end -= 1
        if end:
            kept[name] = numbers[:end]
    return kept


def _smaller(streams: Streams) -> Iterator[Streams]:
    """Yield tapes with a little less, the greatest steps first."""
    names = sorted(streams, key=lambda name: -len(streams[name]))
    for name in names:
        yield {other: numbers for other, numbers in streams.items() if other != name}
    size = max(map(len, streams.values()), default=0)
    while size > 0:
        for name in names:
            numbers = streams[name]
            if name == "world":
                continue  # of which each number has a meaning of its own
            for start in range(0, len(numbers), size):
                yield {**streams, name: numbers[:start] + numbers[start + size :]}
        for name in names:
            numbers = streams[name]
            for start in range(0, len(numbers), size):
                if any(numbers[start : start + size]):
                    zeros = [0] * len(numbers[start : start + size])
                    yield {**streams, name: numbers[:start] + zeros + numbers[start + size :]}
        size //= 2


def shrink(streams: Streams, fails: Callable[[Streams], Streams | None], limit_s: float) -> Streams:
    """Return a small tape that fails as ``streams`` does.

    Args:
        streams: The choices of a history that fails.
        fails: Runs a history, and returns the choices that it made if it fails in the same way, else None.
        limit_s: Seconds after which the smallest tape so far is returned.
    """
    until = time.monotonic() + limit_s
    best = _without_zeros(streams)
    changed = True
    while changed and time.monotonic() < until:
        changed = False
        for candidate in _smaller(best):
            if time.monotonic() >= until:
                break
            made = fails(_without_zeros(candidate))
            if made is not None and _weight(made := _without_zeros(made)) < _weight(best):
                best, changed = made, True
                break
    return best


def _weight(streams: Streams) -> tuple[int, int]:
    return sum(map(len, streams.values())), sum(number != 0 for numbers in streams.values() for number in numbers)
