"""The outcome of a run: a frozen object, and the exit status that follows from it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field

import redis

from wheel_lock import __version__
from wheel_lock.cli.arguments import INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one run. None stands for unknown values.

    The *window* is the time of holding, after all locks were acquired and before they were verified. Losses, unknown and
    overdue renewals are counted from the start of the run.

    Attributes:
        server: Its address, without credentials.
        locks, timeout_s, renew_every_s, seconds: The parameters of the run.
        interrupted: Whether Ctrl-C ended it early.
        trouble: The reason why the server could not be asked at the end, as a sentence; None if it could.
        acquired: Locks acquired.
        acquire_s, locks_per_s: The duration and rate of that.
        held_s: Length of the window.
        held_at_end: Locks that were valid, as the library knows, when the window closed.
        owned_at_end: Locks whose keys had this run's tokens when the server was asked after that.
        lost, lost_by_reason: Leases that ended without a release until the window closed.
        unknown: Renewals with an unknown outcome, which were retried.
        overdue: Leases with a renewal that was due and not confirmed when the window closed.
        renewed, batches, renewals_per_s: Confirmed renewals and renewal calls in the window.
        renewal_lag_p50_s, renewal_lag_p99_s, renewal_lag_max_s: Time from due to confirmed, in the window.
        renewal_slack_min_s: The least time left to a local deadline when a renewal was confirmed, in the window.
        renewed_acquiring, acquiring_lag_max_s, acquiring_slack_min_s: The same before the window.
        wheel_cpu_s, wheel_cores: CPU time of the timer's thread in the window, and per second of it.
        server_cpu_s, server_cores: The same for the server's process.
        client_us_per_renewal, server_us_per_renewal: Microseconds of that for each renewal.
        rss_bytes_per_lock: Growth of this process's resident memory by acquiring: lock objects, leases, wheel entries,
            names, and the dict of the locks.
        close_s: The duration of the release of all locks.
        left_at_server: Keys of this run that existed after that; they expire.
        wheel_lock, python, redis_py, redis_server: Versions.
    """

    server: str
    locks: int
    timeout_s: float
    renew_every_s: float
    seconds: float
    interrupted: bool
    trouble: str | None
    acquired: int
    acquire_s: float
    locks_per_s: float | None
    held_s: float
    held_at_end: int
    owned_at_end: int | None
    lost: int
    lost_by_reason: dict[str, int]
    unknown: int
    overdue: int
    renewed: int
    batches: int
    renewals_per_s: float | None
    renewal_lag_p50_s: float | None
    renewal_lag_p99_s: float | None
    renewal_lag_max_s: float | None
    renewal_slack_min_s: float | None
    renewed_acquiring: int
    acquiring_lag_max_s: float | None
    acquiring_slack_min_s: float | None
    wheel_cpu_s: float
    wheel_cores: float | None
    server_cpu_s: float | None
    server_cores: float | None
    client_us_per_renewal: float | None
    server_us_per_renewal: float | None
    rss_bytes_per_lock: float | None
    close_s: float
    left_at_server: int | None
    wheel_lock: str = __version__
    python: str = field(default_factory=platform.python_version)
    redis_py: str = redis.__version__
    redis_server: str | None

    @property
    def ok(self) -> bool:
        """True if all locks were acquired, none was lost, and all keys had this run's tokens at the end."""
        return self.lost == 0 and self.locks == self.acquired == self.owned_at_end

    @property
    def exit_status(self) -> int:
        """The exit status of the process: 0, 1 if the outcome is not ok, 130 if the run was interrupted."""
        return INTERRUPTED if self.interrupted else int(not self.ok)
