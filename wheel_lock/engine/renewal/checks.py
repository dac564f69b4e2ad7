"""Early checks: leases that may have been lost are renewed ahead of their time, a few calls at a time behind what is due.

After each reconnection all leases of the node are *verified*: a server that was killed comes back empty, and so may its
replacement; a due renewal would detect that up to a third of the timeout later. Where changes of keys are reported, a
lease is checked when its key has changed, and registered again.

A check is a renewal, or a query where a renewal is pointless. So all rules of renewals hold: what the server says about the
lease ends it, an error or a lost connection proves nothing, and a reply that comes too late changes nothing. A check moves
no due tick: a lease keeps its place in the wheel's schedule.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

from wheel_lock.block import block_of
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import LeaseGroup, Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import in_calls
from wheel_lock.engine.requests.query import Query
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, LossReason
from wheel_lock.lease import EXTENDING, HELD, OVERDUE, Lease, local_deadline
from wheel_lock.protocol.server_errors import NOT_NOW
from wheel_lock.rows import Rows
from wheel_lock.runtime.alarm import Alarm

_CALLS = 8  # in flight: enough to keep the server busy, few enough to let renewals that are due in between
_SETTLED_S = 0.02  # a lease that is released sooner is never registered
_REFUSED_S = 1.0  # after a registration that was refused for a reason of that moment
_UNANSWERED_S = 1.0  # after a query without an answer
_RETRY_S = 0.02  # while a call about the same lease is in flight
_REGISTERED_A_SECOND = 1000  # leases with invalidations; more are checked, and registered at their next renewal
_COST_OF_CALL = 10  # in leases: a key that another client changes again and again is checked 100 times a second at most
_REST_OF_PASS = 10.0  # times the duration of a pass over all leases, before the next one
_LONGEST_REST_S = 30.0


def _is_counted(lease: Lease) -> bool:
    """Return whether the renewals of ``lease`` are counted, so that a check must not be one."""
    return lease.limits is not None and lease.limits.max_renewals is not None


class _Look(Query[bool]):
    """The query whether the server knows a lease, whose key it registers."""

    __slots__ = ("_lease",)

    def __init__(self, table: LeaseTable, lease: Lease, future: Future[bool]) -> None:
        lock_type = group_of(lease).lock_type
        read = partial(lock_type.parse_owned, lease=lease)
        super().__init__(table, lease.name, lease.key, lock_type.owned(lease), read, future)
        self._lease = lease

    @property
    def leases(self) -> Sequence[Lease]:
        return (self._lease,)

    def redirect_to(self, shard: Shard) -> None:
        """Send the query there. The lease does not migrate: it may be in a renewal by now, which moves it."""
        self._asked()
        self.node = self.node_on(shard)
        self.resend()


class Why(enum.Enum):
    """Why a lease is checked. The first reason goes first."""

    DOUBTED = enum.auto()  # its key may have changed
    UNREGISTERED = enum.auto()  # changes of its key are not reported


class Progress(enum.Enum):
    """The state of the calls about leases that are to be checked."""

    IDLE = enum.auto()  # nothing is to be checked
    POSTED = enum.auto()  # the next calls are sent in the next turn
    BLOCKED = enum.auto()  # there is something to check, and the node takes no call now


IDLE, POSTED, BLOCKED = Progress


class EarlyChecks:
    """The leases of one node that are to be checked. Timer's thread only.

    Args:
        send: Sends a call about leases of one group.
        takes_more: Returns whether the node takes another call.

    Attributes:
        progress: Whether there is something to check, and whether the node takes a call now.
        registers: False while calls are sent that are not to register keys.
    """

    def __init__(
        self, renewer: Shard, table: LeaseTable, send: Callable[..., object], takes_more: Callable[[], bool]
    ) -> None:
        self._renewer = renewer
        self._table = table
        self._timer = table.timer
        self._send = send
        self._takes_more = takes_more
        self.progress: Progress = IDLE
        self.registers: bool = True
        self._in_flight = 0
        self._rest: Alarm | None = None  # after a pass over all watched leases
        self._window = -math.inf  # when the second began in which registrations are counted
        self._in_window = 0
        self.verify(())

    def verify(self, entries: Iterable[Lease | Rows]) -> None:
        """Check all that was held when the node was connected. Nothing else is to be checked any more."""
        self._unverified: deque[Lease | Rows] = deque(entries)
        self._connected_at = self._timer.now
        self._queues: dict[Why, dict[Lease, None]] = {why: {} for why in Why}
        self._later: dict[tuple[Why, float], list[Lease]] = {}
        self._pass_began: float | None = None
        self._pass_wanted = False

    def stop(self) -> None:
        """End all that would be done later."""
        self._timer.cancel(self._rest)
        self.verify(())

    # -- what is to be done ------------------------------------------------------------------------------------------

    def settle(self, leases: Iterable[Lease]) -> None:
        """Register leases that were just granted, unless they are released at once."""
        self._add_later(Why.UNREGISTERED, _SETTLED_S, leases)

    def register_later(self, leases: Iterable[Lease]) -> None:
        """Register, after a pause, leases whose registration was refused for a reason of that moment."""
        self._add_later(Why.UNREGISTERED, _REFUSED_S, leases)

    def doubt(self, leases: Iterable[Lease] | None) -> None:
        """Check leases that may have been lost, but for those that have ended or are at other nodes.

        None stands for all watched ones, which are registered, too: as soon as a pause since the last time has passed.
        """
        if leases is not None:
            self._add(Why.DOUBTED, leases)
        else:
            self._pass_wanted = True
            self._begin_pass()

    def _begin_pass(self) -> None:
        if self._pass_wanted and self._pass_began is None and self._rest is None:
            self._pass_wanted = False
            self._pass_began = self._timer.now
            self._add(Why.UNREGISTERED, [lease for lease in self._table.held if group_of(lease).lock_type.watchable])

    def _end_pass(self, began: float) -> None:
        rest_s = min(_REST_OF_PASS * (self._timer.now - began), _LONGEST_REST_S)
        self._pass_began = None
        self._rest = self._timer.call_at(self._timer.now + rest_s, self._end_rest, self._renewer)

    def _end_rest(self, now: float) -> None:
        self._rest = None
        self._begin_pass()

    def _add(self, why: Why, leases: Iterable[Lease]) -> None:
        here = [lease for lease in leases if lease.state <= EXTENDING and group_of(lease).renewer is self._renewer]
        self._queues[why].update(dict.fromkeys(here))
        if here:
            self._renewer.node.connect()  # usually it is connected, but not always where a lease has just moved to
        self.go_on()

    def _add_later(self, why: Why, pause_s: float, leases: Iterable[Lease]) -> None:
        """Add leases after a pause. Those that come meanwhile share it."""
        key = why, pause_s
        if key not in self._later:
            self._later[key] = []
            self._timer.call_at(self._timer.now + pause_s, partial(self._end_pause, key), self._renewer)
        self._later[key].extend(leases)

    def _end_pause(self, key: tuple[Why, float], now: float) -> None:
        self._add(key[0], self._later.pop(key, ()))

    # -- calls -------------------------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Count one call as ended, with or without a reply, and go on."""
        self._in_flight -= 1
        self.go_on()

    def go_on(self) -> None:
        """Send the next calls in the next turn, so that what comes in one turn shares them."""
        if self.progress is POSTED:
            return
        wanted = bool(self._unverified) or any(self._queues.values())
        self.progress = (POSTED if self._has_room else BLOCKED) if wanted else IDLE
        if self.progress is POSTED:
            self._timer.post(self._send_next, self._renewer)
        elif not wanted and self._pass_began is not None and not self._in_flight:
            self._end_pass(self._pass_began)

    @property
    def _has_room(self) -> bool:
        return self._in_flight < _CALLS * self._renewer.node.calls_for_a_batch and self._takes_more()

    def _send_next(self) -> None:
        self.progress = IDLE
        if self._has_room:
            leases, self.registers = self._take()
            try:
                self._check(leases)
            finally:
                self.registers = True
        self.go_on()

    def _check(self, leases: Iterable[Lease]) -> None:
        """Check HELD leases now; skip those that are not on the wheel."""
        wheel = self._timer.wheel
        by_group: dict[LeaseGroup, list[Lease]] = {}
        for lease in leases:
            if self._renewer.needs_none(lease) or _is_counted(lease):
                self._in_flight += 1
                self._look_at(lease)
                continue
            self._renewer.take_out(lease)
            due = lease.tick
            if wheel.cancel(lease):
                # One interval later is its former place on the wheel.
                group = group_of(lease)
                lease.tick = min(due - group.interval_ticks, wheel.now)
                by_group.setdefault(group, []).append(lease)
        for group, some in by_group.items():
            for call in in_calls(some, self._renewer.node.batch_size):
                self._in_flight += 1
                self._send(group, call, early=True)

    def _verify_block(self, rows: Rows) -> None:
        """Renew rows at once whose leases are not made, as the block that they are."""
        block, group, wheel = block_of(rows), group_of(rows), self._timer.wheel
        if group.renewer is self._renewer and block is not None and self._is_older(block.own_deadline, group):
            due = block.tick
            if wheel.cancel(block):
                block.tick = min(due - group.interval_ticks, wheel.now)  # as above
                self._in_flight += 1
                self._send(group, block, early=True)

    def _take(self) -> tuple[Sequence[Lease], bool]:
        """Remove the next leases that can be checked now; return them, and whether to register them."""
        node = self._renewer.node
        most = node.batch_size * node.calls_for_a_batch
        if self._queues[Why.DOUBTED]:
            leases = self._take_from(Why.DOUBTED, most)
            return leases, self._allows(len(leases))
        if self._unverified:
            unverified: list[Lease] = []
            while self._unverified and len(unverified) < most:
                entry = self._unverified.popleft()
                if not isinstance(entry, Rows):
                    unverified.append(entry)
                elif entry.made:
                    unverified += entry.held
                else:
                    self._verify_block(entry)
                    break
            return list(filter(self._is_unverified, unverified)), True
        return self._take_from(Why.UNREGISTERED, most), True

    def _look_at(self, lease: Lease) -> None:
        """Query whether the server knows a HELD lease, and mark it lost if not. Without an answer, query again later."""

        def looked() -> None:
            self.answered()
            error = future.error
            not_now = isinstance(error, LockServerError) and error.code in NOT_NOW
            if not_now or isinstance(error, (LockUnavailable, LockTimeout)):
                self._add_later(Why.DOUBTED, _UNANSWERED_S, [lease])
            elif error is None and not future.result() and lease.state is HELD:
                self._table.mark_lost([lease], LossReason.KEY_GONE)

        future = Future[bool](looked)
        _Look(self._table, lease, future).start()

    def _is_unverified(self, lease: Lease) -> bool:
        """Return False for a lease that is in a call, or overdue, or was confirmed since the node was connected."""
        group = group_of(lease)
        if lease.state is not HELD or group.renewer is not self._renewer:
            return False
        return _is_counted(lease) or self._renewer.needs_none(lease) or self._is_older(lease.deadline, group)

    def _is_older(self, deadline: float, group: LeaseGroup) -> bool:
        """Return whether a deadline of a group was confirmed before the node was connected."""
        return deadline < local_deadline(self._connected_at, group.timeout_s)

    def _take_from(self, why: Why, most: int) -> list[Lease]:
        queue, wheel = self._queues[why], self._timer.wheel
        taken: list[Lease] = []
        later: list[Lease] = []
        for lease in list(islice(queue, most)):
            del queue[lease]
            if lease.state > EXTENDING or lease.state is OVERDUE or group_of(lease).renewer is not self._renewer:
                continue  # ended, or to be renewed as soon as possible anyway
            self._renewer.take_out(lease)
            # The reply to a call that is in flight may be older than the change.
            (taken if lease.state is HELD and lease in wheel else later).append(lease)
        if later:
            self._add_later(why, _RETRY_S, later)
        return taken

    def _allows(self, number: int) -> bool:
        """Return whether so many more leases may be registered in this second.

        A server whose tracking table is full drops other keys for those that are registered, and reports them as changed.
        """
        now = self._timer.now
        if now - self._window >= 1.0:
            self._window, self._in_window = now, 0
        self._in_window += number + _COST_OF_CALL
        return self._in_window <= _REGISTERED_A_SECOND
