"""Waiting for several locks together: the waiter is in the queue of the first name that is held elsewhere.

It holds nothing meanwhile, and tries for all of them again when that one may be free. So overlapping sets cannot wait for
each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wheel_lock.engine.future import Future
from wheel_lock.engine.loss_events import HeldBack
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.acquire_all import AcquireAll
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.lease import Lease


class MultiLockWaiter(Waiter):
    """One caller's wait for several exclusive locks together."""

    __slots__ = ("_held_back",)

    concerns_others = False  # an error may be about another name than its queue's

    @property
    def name(self) -> str | bytes:
        """The name that it waits for: that which its latest try has found held."""
        request = self._request
        if isinstance(request, AcquireAll) and request.blocker is not None:
            return request.blocker.name
        return next((lease.name for lease in self._template if lease.key == self.key), super().name)

    def _another(self, first: Lease) -> Lease:
        lease = super()._another(first)
        lease.on_lost = self._held_back.get(first)
        return lease

    def succeed(self, leases: Sequence[Lease]) -> None:
        for held_back in self._held_back.values():
            held_back.close()  # the losses of earlier tries
            held_back.open()
        super().succeed(leases)

    def begin(self) -> None:
        """Try for all of them: the answer to another waiter's try for one of them says nothing about the others."""
        if not self.over:
            self.began_at: float = self.table.timer.now
            # A lease that is lost before all are granted was never the caller's. A refused try in parts removes some.
            leases = self._template
            self._held_back = {lease: HeldBack(lease.on_lost) for lease in leases if lease.on_lost is not None}
            for lease, held_back in self._held_back.items():
                lease.on_lost = held_back
            self.try_once(self._tried, waiting=False)

    def prepare(self, tried: Callable[[], object]) -> None:
        """Prepare nothing: the name it waits for, and the number of calls of a try, may change before the next try."""

    def _new_request(self, leases: Sequence[Lease], future: Future[bool], waiter_ttl_ms: int) -> Acquire:
        return AcquireAll(self.table, leases, self.options, future)

    def _poll(self) -> None:
        self.refused_by(self.request)
        super()._poll()

    def refused_by(self, request: Acquire) -> bool:
        """Wait for the name that is held elsewhere; return True if it is another name than before."""
        assert isinstance(request, AcquireAll)
        if request.blocker is None or request.blocker.key == self.key:
            return False
        self._wait_for(request.blocker.key)
        return True
