"""Verification: after each reconnection the leases of the node are renewed at once, to find those that it has forgotten.

A server that was killed comes back empty, and so may its replacement; a due renewal would detect that up to a third of the
timeout later. A few calls are in flight at a time, so renewals that are due are not delayed. A lease keeps its place in
the wheel's schedule: the verification moves no due tick.
"""

from __future__ import annotations

from collections.abc import Iterable

from wheel_lock.engine.interfaces import LeaseGroup, group_of
from wheel_lock.engine.renewal.batch import BatchOwner, Callback
from wheel_lock.lease import HELD, Lease, local_deadline

_CALLS = 8  # in flight: enough to keep the server busy, few enough to let renewals that are due in between


def check(renewer: BatchOwner, leases: Iterable[Lease], answered: Callback) -> int:
    """Check now, ahead of their renewals, HELD leases of ``renewer``: by a renewal, or a query where that is pointless.

    A lease keeps its place in the wheel's schedule. Leases that are not on the wheel are skipped.

    Args:
        renewer: The renewer of the leases.
        leases: The leases.
        answered: Called for each call that has ended, with or without a reply.

    Returns:
        The number of calls.
    """
    wheel, size, calls = renewer.table.timer.wheel, renewer.node.batch_size, 0
    by_group: dict[LeaseGroup, list[Lease]] = {}
    for lease in leases:
        if renewer.needs_none(lease) or (lease.limits is not None and lease.limits.max_renewals is not None):
            calls += 1
            renewer.look_at(lease, answered)
            continue
        due = lease.tick
        if wheel.cancel(lease):
            # One interval later is its former place on the wheel.
            group = group_of(lease)
            lease.tick = min(due - group.interval_ticks, wheel.now)
            by_group.setdefault(group, []).append(lease)
    for group, some in by_group.items():
        for start in range(0, len(some), size):
            calls += 1
            renewer.send(group, some[start : start + size], verified=answered)
    return calls


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
        renewer = self._renewer
        size = renewer.node.batch_size
        part = self._leases[self._next : self._next + size * renewer.node.calls_for_a_batch]
        self._next += len(part)
        # Those in other states are in a call, or overdue; those with a later deadline were confirmed meanwhile.
        self._in_flight += check(renewer, [lease for lease in part if self._is_open(lease)], self.answered)
        if self._next >= len(self._leases):
            self._leases, self._next = [], 0  # so that ended leases can be collected
        self.go_on()

    def _is_open(self, lease: Lease) -> bool:
        group = group_of(lease)
        if lease.state is not HELD or group.renewer is not self._renewer:
            return False
        limited = lease.limits is not None and lease.limits.max_renewals is not None
        return (
            limited or self._renewer.needs_none(lease) or lease.deadline < local_deadline(self._since, group.timeout_s)
        )
