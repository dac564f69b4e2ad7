"""One run: acquire many locks, hold them, verify them at the server, release them, and measure.

Nothing is printed here: a :class:`Watch` observes the run, and the result is an :class:`Outcome`.
"""

from __future__ import annotations

import gc
import math
import secrets
import threading
import time
from dataclasses import dataclass

from wheel_lock import ContextStats, Lock, LockContext, WheelLockError
from wheel_lock.cli import server
from wheel_lock.cli.demo.outcome import Outcome
from wheel_lock.cli.measure import Reading, finite, per, read, resident_bytes
from wheel_lock.cli.target import FAILURES, Target, portions
from wheel_lock.observe.stats import Histogram

_ACQUIRED_AT_ONCE = 50_000
_CLOSE_TIMEOUT_S = 30.0
_CLOSED_PER_S = 20_000  # locks per second; a tenth of the rate of a slow machine
_TURN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run.

    Attributes:
        prefix: The prefix of the names of its locks. A random id of the run follows, so no two runs share a name.
        locks: The number of locks.
        timeout_s: Their time-to-live, in seconds.
        renew_every_s: Seconds between renewals of one lock.
        seconds: How many seconds to hold them.
    """

    prefix: str
    locks: int
    timeout_s: float
    renew_every_s: float
    seconds: float


class Watch:
    """An observer of a run."""

    def acquired(self, run: Run) -> None:
        """Show the number of locks that have been requested."""

    def hold(self, run: Run) -> None:
        """Return when ``run.held_s`` has reached the plan's seconds. Called when all locks are held."""

    def stage(self, what: str) -> None:
        """Show the name of the step that begins."""

    def log(self, line: str) -> None:
        """Show a log message of the library."""

    def done(self) -> None:
        """End the output: the run is over, and the report follows."""


class Run:
    """The steps of one run, in the order in which they are called.

    The clients of ``target`` are used for queries; the locks use connections of their own.
    """

    def __init__(self, target: Target, plan: Plan) -> None:
        self.target = target
        self.plan = plan
        self.context: LockContext = server.context_of(target.client)
        self.locks: dict[str | bytes, Lock | None] = {}  # None: held by another owner
        self.asked_for: int = 0  # locks whose acquire has been answered
        self._touched = 0  # locks whose acquire has been sent, or may have been
        self._id = secrets.token_hex(3)
        self._acquire_s = 0.0
        self._rss_before = resident_bytes()
        self._rss = self._rss_before
        self._acquiring: ContextStats | None = None  # the counters when the window opened
        self._begin: Reading | None = None
        self._end: Reading | None = None
        self._owned: int | None = None
        self._close_s = 0.0
        self._left: int | None = None
        self.trouble: str | None = None

    # -- the steps ---------------------------------------------------------------------------------------------------

    def acquire(self, watch: Watch) -> None:
        """Acquire all locks, in portions.

        Raises:
            WheelLockError: An acquire failed.
        """
        plan = self.plan
        gc.collect()
        self._rss_before = resident_bytes()
        began = time.monotonic()
        while self.asked_for < plan.locks:
            portion = range(self.asked_for, min(self.asked_for + _ACQUIRED_AT_ONCE, plan.locks))
            self._touched = portion.stop
            names = [self._name(number) for number in portion]
            # One statement: locks that Ctrl-C keeps out of the dict would be abandoned.
            self.locks.update(self.context.acquire_many(names, plan.timeout_s, renew_every=plan.renew_every_s))
            self.asked_for = portion.stop
            self._acquire_s = time.monotonic() - began
            watch.acquired(self)

    def begin(self) -> None:
        """Measure the memory, then open the window of measurement."""
        self._rss = resident_bytes()
        self._forget_durations()
        self._begin = read(self.context, self.target.cpu_s())

    def end(self) -> None:
        """Close the window of measurement, unless it is closed."""
        if self._end is None:
            self._end = read(self.context, self.target.cpu_s())

    def verify(self) -> None:
        """Count the locks whose keys have this run's tokens, by a plain client."""
        owned = 0
        try:
            for portion in portions(self.locks.items()):
                values = self.target.values([name for name, _ in portion])
                if len(values) == len(portion):  # a reply of another length is malformed
                    tokens = [None if lock is None else lock.token for _, lock in portion]
                    owned += sum(mine is not None and mine == value for mine, value in zip(tokens, values, strict=True))
        except FAILURES as error:
            self.trouble = f"the server {self.target.address} could not be asked: {server.one_line(error)}"
        else:
            self._owned = owned

    def release(self) -> None:
        """Release all locks by closing the context, and count the keys that are left."""
        began = time.monotonic()
        self.close()
        self._close_s = time.monotonic() - began
        # Including those that Ctrl-C kept from being acquired.
        self._left = self.target.existing(map(self._name, range(self._touched)))

    def _name(self, number: int) -> str:
        return f"{self.plan.prefix}:{self._id}:{number}"

    def close(self) -> None:
        """Close the context, with enough time to release all locks."""
        self.context.close(_CLOSE_TIMEOUT_S + self.asked_for / _CLOSED_PER_S)

    # -- how it goes -------------------------------------------------------------------------------------------------

    @property
    def acquired(self) -> int:
        """The number of locks that have been acquired."""
        return len(self.locks) - sum(lock is None for lock in self.locks.values())

    @property
    def held_s(self) -> float:
        """Seconds since the window was opened."""
        return 0.0 if self._begin is None else time.monotonic() - self._begin.at

    def _forget_durations(self) -> None:
        """Reset the histogram of lags, on the thread that writes it.

        A million locks take seconds to acquire, in which the caller's work and the first renewals compete for the
        interpreter. The window measures the time after that.
        """
        turned = threading.Event()
        counters = self.context._engine.counters

        def turn() -> None:
            self._acquiring = self.context.stats()
            counters.lag = Histogram()
            counters.time_left_min_s = math.inf
            turned.set()

        self.context.timer.post(turn)
        turned.wait(_TURN_TIMEOUT_S)

    def outcome(self, interrupted: bool) -> Outcome:
        """Return the outcome; ``interrupted``: whether Ctrl-C ended the run early."""
        end = self._end or read(self.context, self.target.cpu_s())
        begin = self._begin or end
        held_s = end.at - begin.at
        renewed = end.stats.renewed - begin.stats.renewed
        wheel_s = max(end.wheel_cpu_s - begin.wheel_cpu_s, 0.0)
        server_s = None
        if begin.server_cpu_s is not None and end.server_cpu_s is not None:
            server_s = max(end.server_cpu_s - begin.server_cpu_s, 0.0)
        earlier, acquired = self._acquiring or end.stats, self.acquired
        return Outcome(
            server=self.target.address,
            locks=self.plan.locks,
            timeout_s=self.plan.timeout_s,
            renew_every_s=self.plan.renew_every_s,
            seconds=self.plan.seconds,
            interrupted=interrupted,
            trouble=self.trouble,
            acquired=acquired,
            acquire_s=self._acquire_s,
            locks_per_s=per(acquired, self._acquire_s),
            held_s=held_s,
            held_at_end=end.stats.held,
            owned_at_end=self._owned,
            lost=end.stats.lost,
            lost_by_reason={str(reason): times for reason, times in end.stats.lost_by_reason.items()},
            unknown=end.stats.unknown,
            overdue=end.stats.overdue,
            renewed=renewed,
            batches=end.stats.batches - begin.stats.batches,
            renewals_per_s=per(renewed, held_s),
            renewal_lag_p50_s=end.stats.renewal_lag_p50_s if renewed else None,
            renewal_lag_p99_s=end.stats.renewal_lag_p99_s if renewed else None,
            renewal_lag_max_s=end.stats.renewal_lag_max_s if renewed else None,
            renewal_slack_min_s=finite(end.stats.renewal_time_left_min_s),
            renewed_acquiring=earlier.renewed,
            acquiring_lag_max_s=earlier.renewal_lag_max_s if earlier.renewed else None,
            acquiring_slack_min_s=finite(earlier.renewal_time_left_min_s),
            wheel_cpu_s=wheel_s,
            wheel_cores=per(wheel_s, held_s),
            server_cpu_s=server_s,
            server_cores=per(server_s, held_s),
            client_us_per_renewal=per(wheel_s * 1e6, renewed),
            server_us_per_renewal=per(None if server_s is None else server_s * 1e6, renewed),
            rss_bytes_per_lock=per(self._rss - self._rss_before, acquired) if self._begin else None,
            close_s=self._close_s,
            left_at_server=self._left,
            redis_server=self.target.version,
        )


def conduct(run: Run, watch: Watch) -> Outcome:
    """Run all steps of ``run``, and return the outcome. Ctrl-C ends the holding early.

    Raises:
        WheelLockError: The locks could not be acquired. Those that had been are released.
        KeyboardInterrupt: Ctrl-C was pressed a second time.
    """
    interrupted = False
    try:
        try:
            run.acquire(watch)
            run.begin()
            watch.hold(run)
        except KeyboardInterrupt:
            interrupted = True
        run.end()
        watch.stage("asking the server who owns the locks")
        run.verify()
        watch.stage("releasing them")
        run.release()
        return run.outcome(interrupted)
    except WheelLockError:
        run.close()
        raise
    finally:
        run.context.close(1.0)  # short: only reached with open locks after a second Ctrl-C
