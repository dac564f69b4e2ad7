"""Verification: after each reconnection the leases of the node are renewed at once, to find those that it has forgotten.

A server that was killed comes back empty, and so may its replacement; a due renewal would detect that up to a third of the
timeout later. A few calls are in flight at a time, so renewals that are due are not delayed. A lease keeps its place in
the wheel's schedule: the verification moves no due tick.
"""

from __future__ import annotations

from wheel_lock.engine.interfaces import LeaseGroup, group_of
from wheel_lock.engine.renewal.batch import BatchOwner
from wheel_lock.lease import HELD, Lease, local_deadline

_CALLS = 8  # in flight: enough to keep the server busy, few enough to let renewals that are due in between


class Verification:
    """One pass over the leases that ``renewer`` holds when its node has just been connected. Timer's thread only."""

    def __init__(self, renewer: BatchOwner) -> None:
        self._renewer = renewer
        self._leases = list(renewer.table.held)
        self._since = renewer.table.timer.now
        self._next = 0
        self._in_flight = 0
        self._posted = False

    def answered(self) -> None:
        """Count one call as ended, with or without a reply, and go on."""
        self._in_flight -= 1
        self.go_on()

    def go_on(self) -> None:
        """Verify the next part in the next turn if there is one and the node can take a call."""
        if not self._posted and self._next < len(self._leases) and self._has_room:
            self._posted = True
            self._renewer.table.timer.post(self._verify_part, self._renewer)

    @property
    def _has_room(self) -> bool:
        renewer = self._renewer
        room = self._in_flight < _CALLS * renewer.node.calls_for_a_batch
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
                self._in_flight += 1
                renewer.look_at(lease, self.answered)
            elif lease.deadline < local_deadline(self._since, group.timeout_s):  # else it was confirmed meanwhile
                due = lease.tick
                if wheel.cancel(lease):
                    # One interval later is its former place on the wheel.
                    lease.tick = min(due - group.interval_ticks, wheel.now)
                    by_group.setdefault(group, []).append(lease)
        for group, leases in by_group.items():
            for start in range(0, len(leases), size):
                self._in_flight += 1
                renewer.send(group, leases[start : start + size], verified=self.answered)
        if self._next >= len(self._leases):
            self._leases, self._next = [], 0  # so that ended leases can be collected
        self.go_on()
