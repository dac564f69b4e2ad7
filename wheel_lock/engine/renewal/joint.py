"""Joint ticks: a renewal may come a little early, and then joins the renewals of its node that are due anyway.

With thousands of leases it is the calls, the wake-ups and the system calls that cost, not the leases. Which ones join is
decided when others are due: those whose tick is at most the slack of their group away. So a lease that is alone is renewed
exactly on time, and leases that have once joined are due together from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from wheel_lock.engine.interfaces import LeaseGroup
from wheel_lock.lease import HELD, Lease
from wheel_lock.runtime.timer import HashedWheelTimer

_Key = tuple[
    int, int, int
]  # the first tick at which the leases may be renewed, the tick at which they are due, the group


def _may_join(lease: Lease) -> bool:
    """Return whether an early renewal takes nothing from ``lease``: not one of a limited number."""
    limits = lease.limits
    return lease.state is HELD and (limits is None or (limits.max_renewals is None and not lease.at_limit))


class JointTicks:
    """The ticks at which the leases of one node are due, in the order of when they may be renewed. Timer's thread only.

    A tick is noted once a group, and dropped when it has passed or its leases have joined others.

    Args:
        timer: The timer on whose wheel the leases are.
    """

    __slots__ = ("_groups", "_keys", "_numbers", "_timer")

    def __init__(self, timer: HashedWheelTimer) -> None:
        self._timer = timer
        self._keys: list[_Key] = []  # a heap
        self._numbers: dict[_Key, int] = {}  # of leases, those that have ended meanwhile included
        self._groups: dict[int, LeaseGroup] = {}

    def note(self, group: LeaseGroup, tick: int, number: int) -> None:
        """Note that ``number`` leases of ``group`` have been scheduled for ``tick``. O(log n) in the number of ticks."""
        slack = group.slack_ticks
        if not slack:
            return
        key = (tick - slack, tick, id(group))
        noted = self._numbers.get(key)
        if noted is None:
            noted = 0
            keys, now = self._keys, self._timer.wheel.now
            while keys and keys[0][1] <= now:
                del self._numbers[heappop(keys)]
            heappush(keys, key)
            self._groups[key[2]] = group
        self._numbers[key] = noted + number

    def take(self, due: int, room: int) -> Sequence[tuple[LeaseGroup, list[Lease]]]:
        """Take leases off the wheel that are to be renewed together with others.

        Args:
            due: The tick of the others, which becomes the tick of those that join.
            room: How many may join. All of a group's leases at one tick join, or none, so that they stay together.

        Returns:
            The leases by group.
        """
        keys, wheel = self._keys, self._timer.wheel
        taken: list[tuple[LeaseGroup, list[Lease]]] = []
        while keys and keys[0][0] <= due:
            _, tick, group_id = keys[0]
            if tick > wheel.now:
                if self._numbers[keys[0]] > room:
                    break
                group = self._groups[group_id]
                leases = [lease for lease in wheel.at(tick) if lease.group is group and _may_join(lease)]
                room -= len(leases)
                for lease in leases:
                    wheel.cancel(lease)
                    lease.tick = due
                taken.append((group, leases))
            del self._numbers[heappop(keys)]
        return taken
