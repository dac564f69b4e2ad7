"""FIFO queues whose entries may be abandoned at any time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LEAST = 256  # a shorter queue is not searched


class Parking(deque[T]):
    """A queue that removes abandoned entries whenever its length has doubled, in amortised O(1) per entry.

    So it is never much longer than twice the number of the other entries. ``len`` counts the abandoned ones, too.

    Args:
        abandoned: Returns whether an entry is abandoned.
    """

    def __init__(self, abandoned: Callable[[T], bool]) -> None:
        super().__init__()
        self._abandoned = abandoned
        self._purge_at = _LEAST

    def __bool__(self) -> bool:
        """Remove abandoned entries from the front; return whether an entry is left."""
        while len(self) and self._abandoned(self[0]):
            self.popleft()
        return len(self) > 0

    def append(self, entry: T) -> None:
        super().append(entry)
        if len(self) >= self._purge_at:
            self.throw_out()

    def throw_out(self) -> None:
        """Remove abandoned entries. O(n)."""
        entries = [entry for entry in self if not self._abandoned(entry)]
        if len(entries) < len(self):
            self.clear()
            self.extend(entries)
        self._purge_at = max(2 * len(self), _LEAST)

    def take_all(self) -> list[T]:
        """Empty the queue; return the entries that were not abandoned."""
        entries = [entry for entry in self if not self._abandoned(entry)]
        self.clear()
        self._purge_at = _LEAST
        return entries
