"""Invalidations: leases whose keys have changed are checked at once, in batches, and registered again.

A check is a renewal ahead of its time, so all rules of renewals hold: what the server says about the lease ends it, an
error or a lost connection proves nothing, and a reply that comes too late changes nothing. A check that finds the key
unchanged costs a renewal and no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from wheel_lock.engine.interfaces import group_of
from wheel_lock.engine.renewal.batch import BatchOwner, Callback
from wheel_lock.engine.renewal.tracking import WatchedKeys
from wheel_lock.lease import HELD, OVERDUE, Lease, State
from wheel_lock.runtime.alarm import Alarm

_CALLS = 8  # in flight: enough to keep the server busy, few enough to let renewals that are due in between
_SETTLED_S = 0.02  # a lease that is released sooner is never registered
_REGISTERED_A_SECOND = 1000  # leases with invalidations; more are checked, and registered at their next renewal
_COST_OF_CALL = 10  # in leases: a key that another client changes again and again is checked 100 times a second at most
_REST_OF_PASS = 10.0  # times the duration of a pass over all leases, before the next one
_LONGEST_REST_S = 30.0
_REFUSED_S = 1.0  # after a registration that was refused for a reason of that moment
_RETRY_S = 0.02  # while calls about the same leases are in flight, or the server rejects calls


class CheckingRenewer(BatchOwner, Protocol):
    """The renewer, as its invalidations see it."""

    def check(self, leases: Sequence[Lease], answered: Callback, *, register: bool) -> int:
        """Check HELD leases ahead of their renewals, and register their keys if ``register``.

        Returns:
            The number of calls, for each of which ``answered`` is called at its end.
        """
        ...


class Invalidations:
    """The leases of one node that are to be checked or registered. Timer's thread only.

    Args:
        renewer: The renewer of the node.
        watched: The watched leases of the engine.
    """

    def __init__(self, renewer: CheckingRenewer, watched: WatchedKeys) -> None:
        self._renewer = renewer
        self._timer = renewer.table.timer
        self._watched = watched
        self.reset()

    def reset(self) -> None:
        """Drop everything that is to be done."""
        self.clear()
        self._in_flight = 0
        self._posted = False
        self._retry: Alarm | None = None
        self._pass_alarm: Alarm | None = None
        self._settling: list[Lease] = []
        self._refused: list[Lease] = []
        self._next_pass = -math.inf
        self._window = -math.inf  # when the second began in which registrations are counted
        self._in_window = 0

    def clear(self) -> None:
        """Drop the leases to be checked: all held leases are about to be renewed and registered on a new connection."""
        self._doubted: dict[Lease, None] = {}
        self._unregistered: dict[Lease, None] = {}
        self._later: list[tuple[dict[Lease, None], list[Lease]]] = []  # about which calls are in flight, by queue
        self._pass_began: float | None = None
        self._pass_wanted = False

    # -- what is to be done ------------------------------------------------------------------------------------------

    def settle(self, leases: Iterable[Lease]) -> None:
        """Register leases that were just granted, unless they are released at once."""
        if not self._settling:
            self._timer.call_at(self._timer.now + _SETTLED_S, self._settled, self._renewer)
        self._settling.extend(leases)

    def _settled(self, now: float) -> None:
        settling, self._settling = self._settling, []
        self._unregistered.update({lease: None for lease in settling if lease.state <= State.EXTENDING})
        self._go_on()

    def register_later(self, leases: Iterable[Lease]) -> None:
        """Check and register, after a pause, leases whose registration was refused for a reason of that moment."""
        if not self._refused:
            self._timer.call_at(self._timer.now + _REFUSED_S, self._register_refused, self._renewer)
        self._refused.extend(leases)

    def _register_refused(self, now: float) -> None:
        refused, self._refused = self._refused, []
        self._unregistered.update({lease: None for lease in refused if lease.state <= State.EXTENDING})
        self._go_on()

    def doubt(self, leases: Iterable[Lease]) -> None:
        """Check leases of this node that may have been lost. Those that have ended are skipped."""
        self._doubted.update({lease: None for lease in leases if lease.state <= State.EXTENDING})
        self._go_on()

    def doubt_keys(self, keys: Sequence[bytes] | None) -> None:
        """Check the leases with these keys, if there are any; those with any key for None."""
        if keys is None:
            self.doubt_all()
            return
        by_key, renewer = self._watched.by_key, self._renewer
        leases = [lease for key in keys if (lease := by_key.get(key)) is not None]
        if leases:
            self.doubt([lease for lease in leases if group_of(lease).renewer is renewer])

    def doubt_all(self) -> None:
        """Check and register all watched leases of this node, now or as soon as a pause since the last time has passed."""
        self._pass_wanted = True
        self._begin_pass()

    def _begin_pass(self) -> None:
        if not self._pass_wanted or self._pass_began is not None:
            return
        if self._timer.now < self._next_pass:
            if self._pass_alarm is None:
                self._pass_alarm = self._timer.call_at(self._next_pass, self._begin_next_pass, self._renewer)
            return
        self._pass_wanted = False
        renewer = self._renewer
        self._unregistered.update(
            {lease: None for lease in self._watched.by_key.values() if group_of(lease).renewer is renewer}
        )
        if self._unregistered:
            self._pass_began = self._timer.now
            self._go_on()

    def _begin_next_pass(self, now: float) -> None:
        self._pass_alarm = None
        self._begin_pass()

    # -- calls -------------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Go on: the node is connected, or answers again."""
        self._go_on()

    def _answered(self) -> None:
        """Count one call as ended, with or without a reply, and go on."""
        self._in_flight -= 1
        self._go_on()

    @property
    def _has_room(self) -> bool:
        renewer = self._renewer
        return self._in_flight < _CALLS * renewer.node.calls_for_a_batch and renewer.takes_more

    def _go_on(self) -> None:
        """Send the next calls in the next turn, so that the invalidations of one turn share them."""
        if self._posted:
            return
        if self._doubted or self._unregistered:
            if self._has_room:
                self._posted = True
                self._timer.post(self._send_next, self._renewer)
            elif not self._in_flight and self._renewer.node.ready:
                self._retry_later()
        elif self._pass_began is not None and not self._in_flight:
            rest_s = min(_REST_OF_PASS * (self._timer.now - self._pass_began), _LONGEST_REST_S)
            self._next_pass = self._timer.now + rest_s
            self._pass_began = None
            self._begin_pass()

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = self._timer.call_at(self._timer.now + _RETRY_S, self._retry_now, self._renewer)

    def _retry_now(self, now: float) -> None:
        self._retry = None
        later, self._later = self._later, []
        for queue, leases in later:
            queue.update(dict.fromkeys(leases))
        self._go_on()

    def _send_next(self) -> None:
        self._posted = False
        if not self._has_room:
            self._go_on()
            return
        if self._doubted:
            leases = self._take(self._doubted)
            self._send(leases, register=self._allows(len(leases)))
        else:
            self._send(self._take(self._unregistered), register=True)
        self._go_on()

    def _send(self, leases: Sequence[Lease], *, register: bool) -> None:
        if leases:
            self._in_flight += self._renewer.check(leases, self._answered, register=register)

    def _take(self, queue: dict[Lease, None]) -> list[Lease]:
        """Remove the next leases from ``queue``; return those that can be checked now."""
        renewer, wheel = self._renewer, self._timer.wheel
        taken: list[Lease] = []
        later: list[Lease] = []
        for lease in list(islice(queue, renewer.node.batch_size * renewer.node.calls_for_a_batch)):
            del queue[lease]
            if lease.state > State.EXTENDING or lease.state is OVERDUE or group_of(lease).renewer is not renewer:
                continue  # ended, or to be renewed as soon as possible anyway
            # The reply to a call that is in flight may be older than the change.
            (taken if lease.state is HELD and lease in wheel else later).append(lease)
        if later:
            self._later.append((queue, later))
            self._retry_later()
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
