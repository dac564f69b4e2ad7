"""What came of a run: one frozen object, and whether that is good. Neither measuring nor printing lives here."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field

import redis

from wheel_lock import __version__

INTERRUPTED = 130  # what shells report of a process that Ctrl-C has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run. None stands for what could not be known.

    The *window* is the time of mere holding, after all was acquired and before anything was verified. What is lost,
    unknown or overdue is counted from the very beginning.

    Attributes:
        server: Its address, without credentials.
        locks, timeout_s, renew_every_s, seconds: As asked for.
        interrupted: Whether Ctrl-C ended it early.
        trouble: Why the server could not be asked at the end, as a sentence; None where it could.
        acquired: Locks acquired.
        acquire_s, locks_per_s: How long that took.
        held_s: Length of the window.
        held_at_end: Locks that the library believed in when the window closed.
        owned_at_end: Locks whose key carried our token when the server was asked after that.
        lost, lost_by_reason: Leases that ended without a release until the window closed.
        unknown: Renewals whose outcome was not known; they were tried again.
        overdue: Leases whose renewal was not confirmed, although it should have been, when the window closed.
        renewed, batches, renewals_per_s: Confirmed renewals and renewal calls in the window.
        renewal_lag_p50_s, renewal_lag_p99_s, renewal_lag_max_s: Time from due to confirmed, in the window.
        renewal_slack_min_s: The least time left to a local deadline when a renewal was confirmed, in the window.
        renewed_acquiring, acquiring_lag_max_s, acquiring_slack_min_s: The same before the window.
        wheel_cpu_s, wheel_cores: CPU time of the timer's thread in the window, and per second of it.
        server_cpu_s, server_cores: The same of the server's process.
        client_us_per_renewal, server_us_per_renewal: Microseconds of that for each renewal.
        rss_bytes_per_lock: Growth of this process's resident memory by acquiring: lock objects, leases, their places
            on the wheel, their names, and the dict that a holder keeps them in.
        close_s: How long the release of everything took.
        left_at_server: Keys of this run that were there after that; they expire by themselves.
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
        """Whether all locks were acquired, none was lost, and the server says of every one that it is ours."""
        return self.lost == 0 and self.locks == self.acquired == self.owned_at_end

    @property
    def exit_status(self) -> int:
        """What the process is to end with."""
        if self.interrupted:
            return INTERRUPTED
        return 0 if self.ok else 1
