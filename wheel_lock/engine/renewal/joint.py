"""Joint ticks: a renewal may come a little early, and then joins the renewals of its node that are due anyway.

With thousands of leases it is the calls, the wake-ups and the system calls that cost, not the leases. Which ones join is
decided when others are due: those whose tick is at most the slack of their group away. So a lease that is alone is renewed
exactly on time, and leases that have once joined are due together from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from wheel_lock.block import Block
from wheel_lock.engine.interfaces import LeaseGroup, Shard, group_of
from wheel_lock.lease import HELD, Lease
from wheel_lock.runtime.timer import HashedWheelTimer

_FEW = 64  # notes, beyond twice those in use, after which the others are thrown out


@dataclass(eq=False, repr=False, slots=True)
class JointTicks:
    """The ticks at which the leases of one node are due, in the order of when they may be renewed. Timer's thread only.

    A tick has one note, which says nothing about its leases: these are found on the wheel. A note of which the tick has
    passed, or is empty because its leases have been released, is dropped when the number of notes has doubled.
    """

    _renewer: Shard
    _timer: HashedWheelTimer
    # The first tick at which leases may be renewed, by the tick at which they are due.
    _first: dict[int, int] = field(default_factory=dict)
    # A heap of the same, with some that an earlier first tick has replaced.
    _keys: list[tuple[int, int]] = field(default_factory=list)
    _most: int = _FEW

    def note(self, group: LeaseGroup, tick: int) -> None:
        """Note that leases of ``group`` have been scheduled for ``tick``. O(log n) in the number of ticks, amortised."""
        slack = group.slack_ticks
        if not slack or tick - slack >= self._first.get(tick, tick):
            return
        self._first[tick] = tick - slack
        heappush(self._keys, (tick - slack, tick))
        if len(self._keys) > self._most:
            wheel = self._timer.wheel
            self._first = {due: first for due, first in self._first.items() if due > wheel.now and wheel.load(due)}
            self._keys = [(first, due) for due, first in self._first.items()]
            heapify(self._keys)
            self._most = 2 * len(self._keys) + _FEW

    def take(self, due: int, room: int) -> Sequence[tuple[LeaseGroup, list[Lease | Block]]]:
        """Take leases off the wheel that are to be renewed together with others.

        Args:
            due: The tick of the others, which becomes the tick of those that join.
            room: How many may join. If more are at a tick none of it joins, so that its leases stay together.

        Returns:
            The leases and blocks by group.
        """
        keys, wheel = self._keys, self._timer.wheel
        taken: dict[LeaseGroup, list[Lease | Block]] = {}
        left: list[tuple[LeaseGroup, int]] = []
        while keys and keys[0][0] <= due:
            first, tick = keys[0]
            if self._first.get(tick) == first:
                if tick > wheel.now:
                    if wheel.load(tick) > room:
                        break
                    entries = self._joinable(tick)
                    if sum([entry.size for entry in entries]) > room:
                        break
                    for entry in entries:
                        group = group_of(entry)
                        if tick - group.slack_ticks > due:
                            left.append((group, tick))
                            continue
                        room -= entry.size
                        wheel.cancel(entry)
                        entry.tick = due
                        taken.setdefault(group, []).append(entry)
                del self._first[tick]
            heappop(keys)
        for group, tick in left:
            self.note(group, tick)
        return list(taken.items())

    def _joinable(self, tick: int) -> list[Lease | Block]:
        """Return what is due at ``tick`` here and may be renewed early: no renewal of a limited number."""
        found: list[Lease | Block] = []
        for entry in self._timer.wheel.at(tick):
            if getattr(entry.group, "renewer", None) is self._renewer and entry.state is HELD:
                limits = entry.limits
                if limits is None or (limits.max_renewals is None and not entry.at_limit):
                    found.append(entry)
        return found
