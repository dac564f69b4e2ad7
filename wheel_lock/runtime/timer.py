"""HashedWheelTimer: the public face of the loop, modelled on Netty's class of that name.

``new_timeout(task, delay)`` returns a :class:`Timeout`, ``stop()`` returns the unprocessed ones. Users' tasks run on the
notifier thread. A timeout is rounded up to a tick: never early, as in Netty.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter

from wheel_lock.errors import ContextClosed, TimerStopped, TooManyTimeouts
from wheel_lock.exclusion import exclusively
from wheel_lock.forks import in_forked_child
from wheel_lock.options import count, seconds
from wheel_lock.runtime.clock import Clock, SystemClock
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.interruptions import insist
from wheel_lock.runtime.loop import AWAKE, LONG, LOOPS, Loop
from wheel_lock.runtime.native import RLock
from wheel_lock.runtime.notifier import NOTIFIER, Task
from wheel_lock.runtime.timer_threads import on_timer_thread
from wheel_lock.runtime.watchdog import SlowCalls
from wheel_lock.wheel import WheelEntry

logger: logging.Logger = logging.getLogger("wheel_lock")

_LONGEST_DELAY_S = 1e10
_LONGEST_TAKING_S = 0.005
_TAKING_STEP = 64  # timeouts between two readings of the clock
_LONGEST_END_S = 5.0  # limit of stop()'s wait for the end of the thread
_TOO_MANY = "{0} timeouts are pending, the limit is {0}"
_STOPPED = "the timer has been stopped and takes no new timeouts"
MANY_TIMERS = 64  # as in Netty: one timer serves a process, so this many indicate a leak


class TimeoutState(enum.Enum):
    """The state of a timeout; it leaves PENDING once."""

    PENDING = "pending"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


_PENDING, _CANCELLED, _EXPIRED = TimeoutState
_due_at = attrgetter("due_at")


class Timeout(WheelEntry):
    """A scheduled task. Made by :meth:`HashedWheelTimer.new_timeout`.

    Attributes:
        timer: The timer that it is scheduled on.
        task: The callback; its argument is this object. None once it is cancelled: what the callback refers to is dropped
            by the caller of :meth:`cancel`, not by the timer's thread, which must not run users' finalisers.
        due_at: When it is due, in seconds of the timer's clock.
    """

    __slots__ = ("due_at", "group", "state", "task", "timer")

    # Set by new_timeout, because a call of __init__ takes longer than all of this.
    timer: HashedWheelTimer
    task: Callable[[Timeout], object] | None
    due_at: float
    group: TimeoutGroup
    state: TimeoutState

    def cancel(self) -> bool:
        """Cancel the timeout, from any thread. O(1).

        Returns:
            True if it was pending, so that its task will not run; False if it had expired or been cancelled.
        """
        timer = self.timer
        try:
            del timer._pending[self]
        except KeyError:
            return False
        self.state = _CANCELLED
        self.task = None
        timer._changed.append(self)
        if timer._sleeps_until == LONG and not timer._woken:
            timer.rouse()
        return True

    @property
    def cancelled(self) -> bool:
        """True if the timeout was cancelled before it expired."""
        return self.state is TimeoutState.CANCELLED

    @property
    def expired(self) -> bool:
        """True if the timeout has expired, and its task has been handed to the notifier thread."""
        return self.state is TimeoutState.EXPIRED

    def __repr__(self) -> str:
        return f"<Timeout {self.state.value} due_at={self.due_at:.3f} task={self.task!r}>"


class TimeoutGroup:
    """Hands the tasks of due timeouts to the notifier thread."""

    def __init__(self, timer: HashedWheelTimer) -> None:
        self._timer = timer
        self._slow_calls = SlowCalls(timer, NOTIFIER)

    def due(self, entries: list[Timeout], now: float) -> None:
        """Expire ``entries``, except those that have been cancelled meanwhile.

        Nothing here refers to them when the notifier gets them, so it is the notifier that drops the last reference.
        """
        pending, expired = self._timer._pending, deque[Task]()
        timeout: Timeout | None
        try:
            for timeout in entries:
                try:
                    del pending[timeout]
                except KeyError:
                    continue
                timeout.state = _EXPIRED
                expired.append(timeout)  # type: ignore[arg-type]  # it has its task, for it was not cancelled
        finally:  # what has expired is run, also if the thread is killed here
            entries.clear()
            timeout = None
            if expired:
                NOTIFIER.post_each(expired)
        self._slow_calls.look_later()

    def domains(self, entries: list[Timeout]) -> tuple[FailureDomain, ...]:
        """Return no failure domain: a failure affects only the timeouts that were not handed over."""
        return ()


class HashedWheelTimer(Loop):
    """A hashed wheel timer (Varghese & Lauck 1987, scheme 6; Netty's HashedWheelTimer) on one daemon thread.

    Args:
        tick_ms: Length of a tick in milliseconds.
        slots: Slots of the wheel, rounded up to a power of two, as in Netty. One rotation takes ``slots * tick_ms``.
        max_pending: The most timeouts of users that may be pending at once; None for no bound.
        clock: The source of time; the system's clock by default.
        threaded: If False there is no thread, and the caller calls :meth:`turn`: for tests that move a clock by hand.

    A timer that is dropped without :meth:`stop` runs as long as timeouts are pending on it, or a context uses it. Then it
    is collected like any other object, its thread ends, and a ResourceWarning names it.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        *,
        tick_ms: int = 10,
        slots: int = 1024,
        max_pending: int | None = None,
        clock: Clock | None = None,
        threaded: bool = True,
    ) -> None:
        self.max_pending: int | None = None if max_pending is None else count("max_pending", max_pending, least=1)
        self.timeouts: TimeoutGroup = TimeoutGroup(self)
        # Whoever removes a timeout from it decides what becomes of that: one atomic operation, not a lock, because a
        # signal's handler that interrupts the holder of a lock may wait for this thread. Removing is one instruction, so
        # no handler runs between that and the next statement.
        self._pending: dict[Timeout, None] = {}
        slots = max(2, 1 << (count("slots", slots, least=1) - 1).bit_length())
        super().__init__(tick_ms, slots, clock if clock is not None else SystemClock(), threaded)
        if len(LOOPS) >= MANY_TIMERS and sum(not loop.stopped for loop in LOOPS) == MANY_TIMERS:
            logger.warning(
                "%d timers exist in this process; each is a thread, and one serves any number of locks and contexts",
                MANY_TIMERS,
            )

    def new_timeout(self, task: Callable[[Timeout], object], delay: float) -> Timeout:
        """Call ``task(timeout)`` on the notifier thread, not before ``delay`` has passed. O(1).

        Args:
            task: The callback. An exception that it raises is logged.
            delay: Seconds from now; zero or less means at the next tick.

        Returns:
            The timeout, which can be cancelled.

        Raises:
            ValueError: The delay is not a finite number, or exceeds 1e10 seconds; or ``task`` is not callable.
            TimerStopped: The timer has been stopped.
            TooManyTimeouts: ``max_pending`` timeouts are pending.
        """
        kind = type(delay)
        if (kind is not float and kind is not int) or not 0 <= delay <= _LONGEST_DELAY_S:
            delay = max(seconds("delay", delay, least=-math.inf, most=_LONGEST_DELAY_S), 0.0)
        if not callable(task):
            raise ValueError(f"task must be callable, not {task!r}")
        timeout = Timeout()
        timeout.tick = -1
        timeout.timer = self
        timeout.task = task
        timeout.due_at = due_at = self.clock.now() + delay
        timeout.group = self.timeouts
        timeout.state = _PENDING
        if self.stopped:
            raise TimerStopped(_STOPPED)
        most = self.max_pending
        if most is not None and len(self._pending) >= most:
            raise TooManyTimeouts(_TOO_MANY.format(most))
        try:
            self._pending[timeout] = None
            # Once more, now that it is pending: a stop() that comes later finds it there, and returns it; and of threads
            # that come at the same time none is admitted above the limit, as in Netty.
            if self.stopped and timeout.cancel():
                raise TimerStopped(_STOPPED)
            if most is not None and len(self._pending) > most and timeout.cancel():
                raise TooManyTimeouts(_TOO_MANY.format(most))
            self._changed.append(timeout)
            if due_at < self._sleeps_until and not self._woken:
                self.rouse()
        except BaseException:
            insist(Timeout.cancel, timeout)  # the caller will not have it
            raise
        return timeout

    @property
    def pending(self) -> int:
        """The number of pending timeouts of users."""
        return len(self._pending)

    def stop(self) -> set[Timeout]:
        """Stop the thread, and refuse new timeouts. A second call does nothing.

        It waits for the end of the thread, unless a finaliser calls it on the thread of another timer.

        Returns:
            The timeouts that were neither processed nor cancelled; their tasks will not run.

        Raises:
            RuntimeError: Called on the timer's own thread.
        """
        if self.in_thread:
            raise RuntimeError("stop() cannot be called on the timer's own thread")
        for member in list(self._members):
            member.end(End.STOPPED, ContextClosed("The timer has been stopped"))
        self.stopped = True
        unprocessed: set[Timeout] = set()
        while self._pending:
            try:
                unprocessed.add(self._pending.popitem()[0])
            except KeyError:
                break  # another thread has just settled the last one
        self.wake()
        if not on_timer_thread():
            self._sole.join(_LONGEST_END_S)
        if not self.running:
            self._changed.clear()
        return unprocessed

    @classmethod
    def shared(cls) -> HashedWheelTimer:
        """Return the timer of this process, which all contexts use by default."""
        timer = _shared
        return exclusively(_shared_lock, cls._new_shared) if timer is None or timer.stopped else timer

    @classmethod
    def _new_shared(cls) -> HashedWheelTimer:
        global _shared
        if _shared is None or _shared.stopped:  # else another thread has made it meanwhile
            _shared = cls()
        return _shared

    @classmethod
    def chosen(cls, timer: HashedWheelTimer | None) -> HashedWheelTimer:
        """Return ``timer``, or the shared timer if it is None.

        Raises:
            TypeError: It is not a timer.
        """
        if timer is not None and not isinstance(timer, HashedWheelTimer):
            raise TypeError(f"timer must be a HashedWheelTimer, not {type(timer).__name__}")
        return cls.shared() if timer is None else timer

    # -- the thread --------------------------------------------------------------------------------------------------

    def _take_changed(self) -> None:
        """Bring the wheel up to date: schedule new timeouts, and remove cancelled ones."""
        self._sleeps_until = AWAKE
        changed = self._changed
        self._lingers = bool(changed)
        if not changed:
            return
        schedule, cancel, ceil = self.wheel.schedule, self.wheel.cancel, self.scale.ceil
        until = time.monotonic() + _LONGEST_TAKING_S
        for number in range(1, len(changed) + 1):
            timeout = changed.popleft()
            if timeout.state is not _PENDING:
                cancel(timeout)  # one that was cancelled before it came here has never been on the wheel
            elif timeout.tick < 0:  # else it is here twice: the thread has died
                schedule(timeout, ceil(timeout.due_at))
            # Renewals do not wait for a flood. The thread does not sleep before the rest has been taken.
            if number % _TAKING_STEP == 0 and time.monotonic() > until:
                break

    def _died(self, error: BaseException) -> None:
        # Users' timeouts outlive the thread: they leave its wheel and go into that of the next.
        pending = sorted(self._pending, key=_due_at)
        for timeout in pending:
            timeout.tick = -1
        self._changed.extend(pending)
        super()._died(error)

    def _forked(self) -> None:
        self._pending = {}
        # The ticks go on behind all of the parent's entries, so that none looks as if it was on the child's wheel. (Not by
        # the clock: in another time namespace it may have gone back.)
        self.scale.origin_s = self.clock.now() - (self.wheel.last_tick + 1) * self.scale.tick_s
        super()._forked()


@in_forked_child
def _after_fork() -> None:
    global _shared_lock
    _shared_lock = RLock()


_shared: HashedWheelTimer | None = None
_shared_lock = RLock()
