"""The overdue set: leases whose renewal is not confirmed although it should be, by local deadline."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator

from sortedcontainers import SortedKeyList

from wheel_lock.engine.interfaces import group_of
from wheel_lock.lease import Lease
from wheel_lock.protocol.scripts import Script


def _urgency(lease: Lease) -> tuple[float, float]:
    return lease.deadline, id(lease)  # the id makes removal logarithmic if thousands share one deadline


def _script_of(lease: Lease) -> Script:
    return group_of(lease).lock_type.renew


class Overdue:
    """Leases ordered by local deadline, which must not change while a lease is in the set.

    There is a list for each of the few renewal scripts, because a server may refuse one script and not another: however
    many leases are refused, they must not delay the others.
    """

    def __init__(self) -> None:
        self._by_script: defaultdict[Script, SortedKeyList[Lease, tuple[float, float]]] = defaultdict(
            lambda: SortedKeyList(key=_urgency)
        )

    def __len__(self) -> int:
        return sum(map(len, list(self._by_script.values())))  # a copy, in one step, because other threads call this

    def __iter__(self) -> Iterator[Lease]:
        return heapq.merge(*self._by_script.values(), key=_urgency)

    def snapshot(self) -> list[Lease]:
        """Return a copy, or [] if the set changes meanwhile. From any thread."""
        try:
            return list(itertools.chain.from_iterable(self._by_script.values()))
        except (IndexError, RuntimeError):
            return []

    @property
    def first_deadline(self) -> float | None:
        """The nearest local deadline, or None if the set is empty."""
        return min((leases[0].deadline for leases in self._by_script.values() if leases), default=None)

    def add(self, leases: Iterable[Lease]) -> None:
        """Add leases that are not in the set. O(n log n)."""
        for script, some in itertools.groupby(leases, _script_of):
            self._by_script[script].update(some)

    def discard(self, lease: Lease) -> None:
        """Remove ``lease`` if it is in the set. O(log n)."""
        self._by_script[_script_of(lease)].discard(lease)

    def take(
        self, most: int, wanted: Callable[[Lease], bool], *, of: Script | None = None, besides: Container[Script] = ()
    ) -> list[Lease]:
        """Remove and return, nearest deadline first, up to ``most`` leases that are ``wanted``. O(most), if most are.

        ``of`` is their only renewal script, None for all; leases of the scripts ``besides`` are passed over.
        """
        lists = [leases for script, leases in self._by_script.items() if of in (None, script) and script not in besides]
        first = list(itertools.islice(heapq.merge(*lists, key=_urgency), most))
        if all(map(wanted, first)):
            for script, number in Counter(map(_script_of, first)).items():
                del self._by_script[script][:number]
            return first
        taken = list(itertools.islice(filter(wanted, heapq.merge(*lists, key=_urgency)), most))
        for lease in taken:
            self.discard(lease)
        return taken

    def pop_until(self, deadline: float) -> list[Lease]:
        """Remove and return, in order, all leases whose local deadline is at or before ``deadline``."""
        popped: list[Lease] = []
        for leases in self._by_script.values():
            stop = leases.bisect_key_right((deadline, math.inf))
            popped += leases.islice(0, stop)
            del leases[:stop]
        popped.sort(key=_urgency)
        return popped
