"""One run: acquire many locks, hold them, verify them at the server, release them, and measure."""

from __future__ import annotations

import gc
import math
import secrets
import time
from collections.abc import Callable
from contextlib import closing

from wheel_lock import ContextStats, Lock, LockContext, WheelLockError
from wheel_lock.cli import output, server
from wheel_lock.cli.arguments import INTERRUPTED, Refusal
from wheel_lock.cli.demo.report import Outcome
from wheel_lock.cli.measure import Reading, finite, of_timer, per, read, resident_bytes
from wheel_lock.cli.target import FAILURES, Target, portions
from wheel_lock.observe.stats import Histogram

_ACQUIRED_AT_ONCE = 50_000
_CLOSE_TIMEOUT_S = 30.0
_CLOSED_PER_S = 20_000  # locks per second; a tenth of the rate of a slow machine
_TURN_TIMEOUT_S = 10.0


class Run:
    """The steps of one run, in the order in which they are called.

    The clients of ``target`` are used for queries; the locks use connections of their own.

    Args:
        prefix: The prefix of the names of the locks. A random id of the run follows, so no two runs share a name.
        outcome: The parameters, and what is measured.
    """

    def __init__(self, target: Target, prefix: str, outcome: Outcome) -> None:
        self.target = target
        self.outcome = outcome
        self.context: LockContext = server.context_of(target.client)
        self._prefix = f"{prefix}:{secrets.token_hex(3)}:"
        self._locks: dict[str | bytes, Lock | None] = {}  # None: held by another owner
        self._touched = 0  # locks whose acquire has been sent, or may have been
        self._acquiring: ContextStats | None = None  # the counters when the window opened
        self._begin: Reading | None = None

    def acquire(self, say: Callable[[str], None]) -> None:
        """Acquire all locks, in portions.

        Raises:
            WheelLockError: An acquire failed.
        """
        outcome = self.outcome
        gc.collect()
        rss_before, began = resident_bytes(), time.monotonic()
        while self._touched < outcome.locks:
            portion = range(self._touched, min(self._touched + _ACQUIRED_AT_ONCE, outcome.locks))
            self._touched = portion.stop
            names = [self._name(number) for number in portion]
            # One statement: locks that Ctrl-C keeps out of the dict would be abandoned.
            self._locks.update(self.context.acquire_many(names, outcome.timeout_s, renew_every=outcome.renew_every_s))
            outcome.acquire_s = time.monotonic() - began
            say(f"acquired {portion.stop:,} of {outcome.locks:,} locks")
        outcome.rss_bytes_per_lock = per(resident_bytes() - rss_before, self.acquired)

    def begin(self) -> None:
        """Open the window of measurement: reset the histogram of lags, on the thread that writes it.

        A million locks take seconds to acquire, in which the caller's work and the first renewals compete for the
        interpreter. The window measures the time after that.
        """
        counters = self.context._engine.counters

        def reset() -> ContextStats:
            stats = self.context.stats()
            counters.lag = Histogram()
            counters.time_left_min_s = math.inf
            return stats

        self._acquiring = of_timer(self.context.timer, reset, _TURN_TIMEOUT_S)
        self._begin = read(self.context, self.target.cpu_s())

    @property
    def held_s(self) -> float:
        """Seconds since the window was opened."""
        return 0.0 if self._begin is None else time.monotonic() - self._begin.at

    def end(self) -> None:
        """Close the window of measurement."""
        end = read(self.context, self.target.cpu_s())
        begin, stats, outcome = self._begin or end, end.stats, self.outcome
        outcome.acquired = self.acquired
        outcome.locks_per_s = per(outcome.acquired, outcome.acquire_s)
        outcome.held_s = end.at - begin.at
        outcome.held_at_end = stats.held
        outcome.lost = stats.lost
        outcome.lost_by_reason = {str(reason): times for reason, times in stats.lost_by_reason.items()}
        outcome.unknown = stats.unknown
        outcome.overdue = stats.overdue
        outcome.renewed = renewed = stats.renewed - begin.stats.renewed
        outcome.batches = stats.batches - begin.stats.batches
        outcome.renewals_per_s = per(renewed, outcome.held_s)
        if renewed:
            outcome.renewal_lag_p50_s = stats.renewal_lag_p50_s
            outcome.renewal_lag_p99_s = stats.renewal_lag_p99_s
            outcome.renewal_lag_max_s = stats.renewal_lag_max_s
        outcome.renewal_slack_min_s = finite(stats.renewal_time_left_min_s)
        earlier = self._acquiring or stats
        outcome.renewed_acquiring = earlier.renewed
        outcome.acquiring_lag_max_s = earlier.renewal_lag_max_s if earlier.renewed else None
        outcome.acquiring_slack_min_s = finite(earlier.renewal_time_left_min_s)
        outcome.wheel_cpu_s = wheel_s = max(end.wheel_cpu_s - begin.wheel_cpu_s, 0.0)
        outcome.wheel_cores = per(wheel_s, outcome.held_s)
        outcome.client_us_per_renewal = per(wheel_s * 1e6, renewed)
        if begin.server_cpu_s is not None and end.server_cpu_s is not None:
            outcome.server_cpu_s = server_s = max(end.server_cpu_s - begin.server_cpu_s, 0.0)
            outcome.server_cores = per(server_s, outcome.held_s)
            outcome.server_us_per_renewal = per(server_s * 1e6, renewed)

    def verify(self) -> None:
        """Count the locks whose keys have this run's tokens, by a plain client."""
        owned = 0
        try:
            for portion in portions(self._locks.items()):
                tokens = [None if lock is None else lock.token for _, lock in portion]
                values = self.target.values([name for name, _ in portion])
                owned += sum(mine is not None and mine == value for mine, value in zip(tokens, values, strict=True))
        except FAILURES as error:  # a reply of another length is one, too
            self.outcome.trouble = f"the server {self.target.address} could not be asked: {server.one_line(error)}"
        else:
            self.outcome.owned_at_end = owned

    def release(self) -> None:
        """Release all locks by closing the context, and count the keys that are left."""
        began = time.monotonic()
        self.close()
        self.outcome.close_s = time.monotonic() - began
        # Including those that Ctrl-C kept from being acquired.
        self.outcome.left_at_server = self.target.existing(map(self._name, range(self._touched)))

    def close(self) -> None:
        """Close the context, with enough time to release all locks."""
        self.context.close(_CLOSE_TIMEOUT_S + self._touched / _CLOSED_PER_S)

    @property
    def acquired(self) -> int:
        """The number of locks that have been acquired."""
        return sum(lock is not None for lock in self._locks.values())

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number}"


def conduct(run: Run, say: Callable[[str], None], hold: Callable[[Run], None]) -> Outcome:
    """Carry out all steps of a run, and return the outcome. Ctrl-C ends the holding early.

    Args:
        say: Shows the step that begins.
        hold: Returns when ``run.held_s`` has reached the time to hold the locks.

    Raises:
        Refusal: The locks could not be acquired, and those that had been are released; or Ctrl-C was pressed a second time.
    """
    outcome = run.outcome
    run.context.close_on_signals()  # a script may end it by SIGTERM
    with closing(run.target), output.messages():
        try:
            try:
                run.acquire(say)
                say(f"holding {run.acquired:,} locks for {outcome.seconds:g} s")
                run.begin()
                hold(run)
            except KeyboardInterrupt:
                outcome.interrupted = True
            run.end()
            say("asking the server who owns the locks")
            run.verify()
            say("releasing them")
            run.release()
        except WheelLockError as error:
            run.close()
            at = f"{outcome.locks:,} locks on {outcome.server}"
            raise Refusal(f"cannot acquire {at}: {server.one_line(error)}") from None
        except KeyboardInterrupt:
            left = f"interrupted again: what is not released yet expires within {outcome.timeout_s:g} s"
            raise Refusal(left, INTERRUPTED) from None
        finally:
            run.context.close(1.0)  # short: only reached with open locks after a second Ctrl-C
    return outcome
