"""FIFO queues whose entries may be abandoned at any time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FEW = 256  # entries, before which abandoned ones are not looked for


class Parking(deque[T]):
    """A queue that removes abandoned entries whenever its length has doubled, in amortised O(1) per entry.

    So it is never much longer than twice the number of entries that still wait. ``len`` counts the abandoned ones, too.

    Args:
        has_left: Returns whether an entry is abandoned.
    """

    def __init__(self, has_left: Callable[[T], bool]) -> None:
        super().__init__()
        self._has_left = has_left
        self._look_at = _FEW

    def __bool__(self) -> bool:
        """Return whether an entry still waits, after removing abandoned entries from the front."""
        while len(self) and self._has_left(self[0]):
            self.popleft()
        return len(self) > 0

    def append(self, one: T) -> None:
        """Put ``one`` at the end."""
        super().append(one)
        if len(self) >= self._look_at:
            self.throw_out()

    def throw_out(self) -> None:
        """Remove abandoned entries. O(n)."""
        stay = [one for one in self if not self._has_left(one)]
        if len(stay) < len(self):
            self.clear()
            self.extend(stay)
        self._look_at = max(2 * len(self), _FEW)

    def take_all(self) -> list[T]:
        """Empty the queue; return the entries that still wait."""
        stay = [one for one in self if not self._has_left(one)]
        self.clear()
        self._look_at = _FEW
        return stay
