"""Verification: after each reconnection the leases of the node are renewed at once, to find out what it has forgotten.

A server that was killed comes back empty, and so may the one that takes its place; each lease would find that out when it
is due, up to a third of its timeout later. A few calls are under way at a time, so that what is due goes out as ever. A
lease keeps its place on the wheel's schedule: the verification moves no due tick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wheel_lock.engine.interfaces import LeaseGroup, Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.lease import HELD, Lease, local_deadline

_CALLS = 8  # under way: enough to keep the server busy, few enough to let renewals that are due in between


class VerifiedShard(Shard, Protocol):
    """What a verification knows of the renewer."""

    table: LeaseTable
    verification: Verification | None

    @property
    def takes_more(self) -> bool: ...
    def look_at(self, lease: Lease, then: Callable[[], object] = ...) -> None: ...
    def verify(self, group: LeaseGroup, leases: list[Lease], verification: Verification) -> None:
        """Renew HELD leases, taken off the wheel, ahead of their time."""
        ...


class Verification:
    """One pass over the leases that were held when a connection was made. Timer's thread only.

    Args:
        renewer: Whose leases; its node has just been connected.
    """

    def __init__(self, renewer: VerifiedShard) -> None:
        self._renewer = renewer
        self._leases = list(renewer.table.held)
        self._since = renewer.table.timer.now
        self._next = 0
        self._under_way = 0
        self._posted = False

    def answered(self) -> None:
        """Note that one call has ended, however that was, and go on."""
        self._under_way -= 1
        self.go_on()

    def go_on(self) -> None:
        """Verify the next part in the next turn, if there is one and a call may be sent."""
        if not self._posted and self._next < len(self._leases) and self._has_room:
            self._posted = True
            self._renewer.table.timer.post(self._verify_part, self._renewer)

    @property
    def _has_room(self) -> bool:
        renewer = self._renewer
        room = self._under_way < _CALLS * renewer.node.calls_for_a_batch
        return room and renewer.verification is self and renewer.takes_more

    def _verify_part(self) -> None:
        self._posted = False
        if not self._has_room:
            return
        renewer, wheel = self._renewer, self._renewer.table.timer.wheel
        size = renewer.node.batch_size
        part = self._leases[self._next : self._next + size * renewer.node.calls_for_a_batch]
        self._next += len(part)
        by_group: dict[LeaseGroup, list[Lease]] = {}
        for lease in part:
            group = group_of(lease)
            if lease.state is not HELD or group.renewer is not renewer:
                continue
            if renewer.needs_none(lease) or (lease.limits is not None and lease.limits.max_renewals is not None):
                self._under_way += 1
                renewer.look_at(lease, self.answered)
            elif lease.deadline < local_deadline(self._since, group.timeout_s):  # else it was confirmed meanwhile
                due = lease.tick
                if wheel.cancel(lease):
                    # One interval after this is where it was on the wheel.
                    lease.tick = min(due - group.interval_ticks, wheel.now)
                    by_group.setdefault(group, []).append(lease)
        for group, leases in by_group.items():
            for start in range(0, len(leases), size):
                self._under_way += 1
                renewer.verify(group, leases[start : start + size], self)
        if self._next >= len(self._leases):
            self._leases, self._next = [], 0  # those that end from now on are kept by nobody
        self.go_on()
