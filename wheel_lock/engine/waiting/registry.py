"""All the lines of one engine: which one a caller stands in, and what is passed on to whom."""

from __future__ import annotations

from wheel_lock.engine.interfaces import terms_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.fair_queue import Queue
from wheel_lock.engine.waiting.wait_queue import AnyLine, Line
from wheel_lock.engine.waiting.waiter import Acquisition
from wheel_lock.errors import ContextClosed, TooManyLocks, WheelLockError, copied, internal_error
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import Contention
from wheel_lock.net.pubsub import Listener, WakeUps
from wheel_lock.runtime.failures import guarded


class Lines:
    """All the lines of one engine."""

    def __init__(self, table: LeaseTable, wakeups: WakeUps) -> None:
        self.table = table
        self.wakeups = wakeups
        self.forget()

    def forget(self) -> None:
        """Start empty, without a word: in a forked child."""
        self._lines: dict[bytes, AnyLine] = {}
        self.asking: dict[bytes, Acquisition] = {}  # for the first time, and ready to wait
        self.pollers: set[Acquisition] = set()
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def count(self) -> int:
        """How many callers wait."""
        return self.waiting + len(self.pollers)

    def find(self, place: bytes) -> AnyLine | None:
        """Return a line if there is one to stand in: somebody does, or somebody of this process holds the lock."""
        line = self._lines.get(place)
        return line if line is not None and (line or line.held_here) else None

    def open(self, waiter: Acquisition) -> AnyLine:
        """Return the line that ``waiter`` stands in or is to stand in, a new one where there is none."""
        line = self._lines.get(waiter.place)
        if line is None:
            kind_of_line = Queue if waiter.kind.contention is Contention.QUEUED else Line
            line = self._lines[waiter.place] = kind_of_line(self, waiter)
            line.linger()
        return line

    def close(self, place: bytes, queue: Listener, channel: bytes) -> None:
        """Drop an empty queue."""
        if self._lines.get(place) is queue:  # else all waiters were dropped in the very step in which it came due
            del self._lines[place]
            self.wakeups.ignore(channel, queue)

    def _line_of(self, lease: Lease) -> AnyLine | None:
        return self._lines.get(terms_of(lease).kind.line(lease.key)) if self._lines else None

    def refusal(self, name: str | bytes) -> WheelLockError | None:
        """Return why one more may not wait, or None if it may."""
        if self.table.state.closed:
            return ContextClosed("The context has been closed", name)
        most = self.table.state.options.max_waiting
        if most is not None and self.count >= most:
            return TooManyLocks(f"{most} callers wait for locks already, which is the limit of this context", name)
        return None

    def ended(self, lease: Lease) -> None:
        """A lease of this process has ended; if it was released, the release has been sent."""
        if self._lines:
            guarded(self, self._ended, lease)

    def _ended(self, lease: Lease) -> None:
        if (line := self._line_of(lease)) is not None:
            line.ended(lease)

    def listened(self, lease: Lease, woken: int) -> None:
        """The release of a lease has woken so many listeners."""
        if (line := self._line_of(lease)) is not None:
            guarded(self, line.listened, woken)

    @property
    def above(self) -> EngineState:
        """The engine."""
        return self.table.state

    def crashed(self, error: Exception) -> None:
        """End all waits: the library's own code has failed in the middle of one. What is held is not in doubt."""
        self.table.state.deaths += 1  # a caller whose wait has got lost half-way looks at this
        self.fail(internal_error(error, None))
        self.wakeups.restart(error)

    def fail(self, error: Exception) -> None:
        """Nobody will get anything any more."""
        waiters = self._disperse()
        for waiter in waiters:
            waiter.fail(copied(error))

    def dissolve(self) -> None:
        """Nobody will get anything any more, and nobody is told: at the end of the interpreter it would only be noise."""
        for waiter in self._disperse():
            waiter.over = True

    def _disperse(self) -> list[Acquisition]:
        waiters = list(self.pollers)
        wheel = self.table.timer.wheel
        for line in self._lines.values():
            waiters.extend(line.disperse())
        for first in list(self.asking.values()):
            waiters.append(first)
            waiters.extend(first.step_aside() or ())
        self.pollers.clear()
        self._lines.clear()
        self.waiting = 0
        for waiter in waiters:
            wheel.cancel(waiter)
            waiter.line = None
            waiter.abort()
        return waiters
