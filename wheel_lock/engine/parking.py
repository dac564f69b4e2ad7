"""Those who wait for something in the order of their coming, and may leave without a word."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FEW = 256  # so many may be there before those who have left are looked for


class Parking(deque[T]):
    """A queue that those who have left are thrown out of, as soon as they are half of it, at the price of O(1) each.

    So it is never much longer than the number of those who wait. Its length counts all who are in it.

    Args:
        has_left: Tells who does not wait any more.
    """

    def __init__(self, has_left: Callable[[T], bool]) -> None:
        super().__init__()
        self._has_left = has_left
        self._look_at = _FEW

    def __bool__(self) -> bool:
        """Whether anybody waits. Those who have left are thrown out of the front."""
        while len(self) and self._has_left(self[0]):
            self.popleft()
        return len(self) > 0

    def append(self, one: T) -> None:
        """Put ``one`` at the end."""
        super().append(one)
        if len(self) >= self._look_at:
            self.throw_out()

    def throw_out(self) -> None:
        """Throw out those who have left. O(n)."""
        stay = [one for one in self if not self._has_left(one)]
        if len(stay) < len(self):
            self.clear()
            self.extend(stay)
        self._look_at = max(2 * len(self), _FEW)

    def take_all(self) -> list[T]:
        """Take out everything; return those who still wait."""
        stay = [one for one in self if not self._has_left(one)]
        self.clear()
        self._look_at = _FEW
        return stay
