"""The division of the work of bulk operations among the turns of the timer's thread.

A tick waits for the turn before it to end, so a turn does a bounded amount of such work, for all bulk operations of an
engine together. What is left is done in the next turns, in order: each of them handles due renewals first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from wheel_lock.lease import Lease
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.timer import HashedWheelTimer

LEASES_A_STEP = 500  # as many as a batch has by default: some tenths of a millisecond of work
LEASES_A_TURN = 4 * LEASES_A_STEP
_LONGEST_TURN_S = 0.004


class BulkTurns:
    """Calls steps of bulk operations, as many in a turn as it has room for. Timer's thread only.

    Args:
        timer: The timer.
        domain: The failure domain of the engine.

    Attributes:
        most: The largest number of leases that were handled in one turn.
    """

    def __init__(self, timer: HashedWheelTimer, domain: FailureDomain) -> None:
        self._timer = timer
        self._domain = domain
        self._steps: deque[tuple[int, Callable[[], object], FailureDomain]] = deque()
        self._turn = -1
        self._leases = 0  # handled in this turn
        self._until = 0.0
        self._posted = False  # the timer will call _go_on
        self.most = 0

    @property
    def busy(self) -> bool:
        """True if steps are left for later turns."""
        return bool(self._steps)

    def do(self, leases: int, step: Callable[[], object], domain: FailureDomain | None = None) -> None:
        """Call ``step()``, which handles so many leases: at once if this turn has room, else in a later turn, in order.

        Args:
            leases: The number of leases; at most about ``LEASES_A_STEP``.
            step: The callback.
            domain: Its failure domain if it is called later; by default that of the engine.
        """
        if not self._steps and self._has_room():
            self._count(leases)
            step()
            return
        self._steps.append((leases, step, domain or self._domain))
        self._post()

    def do_all(self, leases: Sequence[Lease], step: Callable[[Sequence[Lease]], object]) -> None:
        """Call ``step(some)`` for all ``leases``, in as many steps as they need."""
        for start in range(0, len(leases), LEASES_A_STEP):
            stop = min(start + LEASES_A_STEP, len(leases))
            self.do(stop - start, lambda start=start, stop=stop: step(leases[start:stop]))  # type: ignore[misc]

    def forget(self) -> None:
        """Drop all steps, in a forked child."""
        self._steps.clear()
        self._posted = False

    def _post(self) -> None:
        if self._steps and not self._posted:
            self._posted = True
            self._timer.post(self._go_on, self._domain)

    def _has_room(self) -> bool:
        if self._turn != self._timer.turns:
            self._turn = self._timer.turns
            self._leases = 0
            self._until = time.monotonic() + _LONGEST_TURN_S
            return True
        return self._leases < LEASES_A_TURN and time.monotonic() < self._until

    def _count(self, leases: int) -> None:
        self._leases += leases
        self.most = max(self.most, self._leases)

    def _go_on(self) -> None:
        self._posted = False
        while self._steps and self._has_room():
            leases, step, domain = self._steps.popleft()
            self._count(leases)
            guarded(domain, step)
        self._post()
