"""The overdue set: leases whose renewal is not confirmed although it should be, nearest local deadline first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from sortedcontainers import SortedKeyList

from wheel_lock.lease import Lease


def _urgency(lease: Lease) -> tuple[float, float]:
    return lease.deadline, id(lease)  # the second makes removal logarithmic where thousands share one deadline


class Overdue:
    """Leases ordered by local deadline. A lease's deadline must not change while it is in here."""

    def __init__(self) -> None:
        self._leases: SortedKeyList[Lease, tuple[float, float]] = SortedKeyList(key=_urgency)

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)

    def snapshot(self) -> list[Lease]:
        """Return a copy. From any thread, so it may be a moment old; what is being changed is left out."""
        try:
            return list(self._leases)
        except (IndexError, RuntimeError):
            return []

    @property
    def first_deadline(self) -> float | None:
        """The nearest local deadline, or None where nothing is overdue."""
        return self._leases[0].deadline if self._leases else None

    def add(self, leases: Iterable[Lease]) -> None:
        """Add leases that are not in here. O(n log n)."""
        self._leases.update(leases)

    def discard(self, lease: Lease) -> None:
        """Take ``lease`` out if it is in here. O(log n)."""
        self._leases.discard(lease)

    def take(self, most: int, wanted: Callable[[Lease], bool], *, among: int | None = None) -> list[Lease]:
        """Take out, nearest deadline first, up to ``most`` leases that are ``wanted``. O(most), if most of them are.

        Args:
            most: How many at most.
            wanted: Which.
            among: How many are looked at; None for all.
        """
        first = list(self._leases.islice(0, most))
        if all(map(wanted, first)):
            del self._leases[: len(first)]
            return first
        taken = list(itertools.islice(filter(wanted, self._leases.islice(0, among)), most))
        for lease in taken:
            self._leases.discard(lease)
        return taken

    def pop_until(self, deadline: float) -> list[Lease]:
        """Take out, in order, every lease whose local deadline is at or before ``deadline``."""
        stop = self._leases.bisect_key_right((deadline, math.inf))
        popped = list(self._leases.islice(0, stop))
        del self._leases[:stop]
        return popped
