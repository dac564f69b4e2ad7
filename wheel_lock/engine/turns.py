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

_Step = tuple[int, Callable[[], object], FailureDomain]


class BulkTurns:
    """Calls steps of bulk operations, as many in a turn as it has room for. Timer's thread only.

    Steps that handle replies alternate with all others, so neither wait for a long queue of the others: a grant does not
    wait until half a million releases have begun. The replies that wait are those of batches in flight, which are few.

    Args:
        timer: The timer.
        domain: The failure domain of the engine.

    Attributes:
        most: The largest number of leases that were handled in one turn.
    """

    def __init__(self, timer: HashedWheelTimer, domain: FailureDomain) -> None:
        self._timer = timer
        self._domain = domain
        self._answers: deque[_Step] = deque()
        self._others: deque[_Step] = deque()
        self._answers_next = True
        self._turn = -1
        self._leases = 0  # handled in this turn
        self._until = 0.0
        self._posted = False  # the timer will call _go_on
        self.most = 0

    @property
    def waiting(self) -> int:
        """The number of steps that are left for later turns."""
        return len(self._answers) + len(self._others)

    def do(self, leases: int, step: Callable[[], object]) -> None:
        """Call ``step()``, which handles so many leases: at once if this turn has room, else in a later turn, in order.

        ``leases`` is at most about ``LEASES_A_STEP``.
        """
        self._do(self._others, (leases, step, self._domain))

    def do_behind(self, call: Callable[[], object]) -> None:
        """Call ``call()`` behind all steps that wait, but for replies: at once if none does."""
        if self.waiting:
            self._others.append((0, call, self._domain))
        else:
            call()

    def do_answer(self, leases: int, step: Callable[[], object], domain: FailureDomain) -> None:
        """Like :meth:`do`, for a step that handles what has been read already, in the failure domain of the request."""
        self._do(self._answers, (leases, step, domain))

    def do_all(self, leases: Sequence[Lease], step: Callable[[Sequence[Lease]], object]) -> None:
        """Call ``step(some)`` for all ``leases``, in as many steps as they need."""
        for start in range(0, len(leases), LEASES_A_STEP):
            stop = min(start + LEASES_A_STEP, len(leases))
            self.do(stop - start, lambda start=start, stop=stop: step(leases[start:stop]))  # type: ignore[misc]

    def finish(self) -> None:
        """Do all that is left, because this turn is the last."""
        while self.waiting:
            self._do_next()

    def resume(self) -> None:
        """Go on after a failure, or the death of the thread, in the middle of a turn."""
        self._posted = False
        self._post()

    def forget(self) -> None:
        """Drop all steps, in a forked child."""
        self._answers.clear()
        self._others.clear()
        self._posted = False

    def _do(self, queue: deque[_Step], step: _Step) -> None:
        if not self.waiting and self._has_room():
            self._count(step[0])
            step[1]()
        else:
            queue.append(step)
            self._post()

    def _post(self) -> None:
        if self.waiting and not self._posted:
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

    def _do_next(self) -> None:
        first, second = (self._answers, self._others) if self._answers_next else (self._others, self._answers)
        self._answers_next = not self._answers_next
        leases, step, domain = (first or second).popleft()
        self._count(leases)
        guarded(domain, step)

    def _go_on(self) -> None:
        self._posted = False
        while self.waiting and self._has_room():
            self._do_next()
        self._post()
