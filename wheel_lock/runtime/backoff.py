"""Exponential backoff with jitter."""

from __future__ import annotations

import random

# The system's generator: it has no state that a fork, or a snapshot of the machine, would copy to several processes.
JITTER = random.SystemRandom()


class Backoff:
    """Pauses that double from the first to the longest one, with jitter."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def pause(self) -> float:
        """Return the next pause in seconds, 25 % more or less at random, so that many clients do not return at once."""
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self._most_s)
        return pause_s * JITTER.uniform(0.75, 1.25)

    def reset(self) -> None:
        """Begin again with the first pause."""
        self._next_s = self._first_s
