"""The outcome of a run: what is measured, a summary, a table for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console

from wheel_lock.cli.arguments import INTERRUPTED
from wheel_lock.cli.measure import Measured
from wheel_lock.cli.output import Row, duration, number, present, share

_ENOUGH_TO_WEIGH = 10_000  # with fewer locks, single pages of memory dominate the result


@dataclass(slots=True, kw_only=True)
class Outcome(Measured):
    """The outcome of one run.

    The *window* is the time of holding, after all locks were acquired and before they were verified. Losses, unknown and
    overdue renewals are counted from the start of the run.

    Attributes:
        renew_every_s: Seconds between renewals of one lock.
        interrupted: Whether Ctrl-C ended it early.
        acquired: Locks acquired.
        acquire_s, locks_per_s: The duration and rate of that.
        held_s: Length of the window.
        held_at_end: Locks that were valid, as the library knows, when the window closed.
        owned_at_end: Locks whose keys had this run's tokens when the server was asked after that.
        lost_by_reason: Leases that ended without a release until the window closed.
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
    """

    renew_every_s: float
    interrupted: bool = False
    acquired: int = 0
    acquire_s: float = 0.0
    locks_per_s: float | None = None
    held_s: float = 0.0
    held_at_end: int = 0
    owned_at_end: int | None = None
    lost_by_reason: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    overdue: int = 0
    renewed: int = 0
    batches: int = 0
    renewals_per_s: float | None = None
    renewal_lag_p50_s: float | None = None
    renewal_lag_p99_s: float | None = None
    renewal_lag_max_s: float | None = None
    renewal_slack_min_s: float | None = None
    renewed_acquiring: int = 0
    acquiring_lag_max_s: float | None = None
    acquiring_slack_min_s: float | None = None
    wheel_cpu_s: float = 0.0
    wheel_cores: float | None = None
    server_cpu_s: float | None = None
    server_cores: float | None = None
    client_us_per_renewal: float | None = None
    server_us_per_renewal: float | None = None
    rss_bytes_per_lock: float | None = None
    close_s: float = 0.0

    @property
    def ok(self) -> bool:
        """True if all locks were acquired, none was lost, and all keys had this run's tokens at the end."""
        return self.lost == 0 and self.locks == self.acquired == self.owned_at_end

    @property
    def exit_status(self) -> int:
        """The exit status of the process: 0, 1 if the outcome is not ok, 130 if the run was interrupted."""
        return INTERRUPTED if self.interrupted else int(not self.ok)


def summary(outcome: Outcome) -> str:
    """Return a summary of the outcome in one or more sentences."""
    sentences = []
    if outcome.interrupted:
        sentences.append(
            f"Stopped by Ctrl-C after {duration(outcome.held_s)} of holding {number(outcome.acquired)} locks."
        )
    if outcome.acquired < outcome.locks and not outcome.interrupted:
        sentences.append(f"Only {number(outcome.acquired)} of {number(outcome.locks)} locks could be acquired.")
    if outcome.lost:
        reasons = ", ".join(f"{reason}: {number(times)}" for reason, times in outcome.lost_by_reason.items())
        sentences.append(f"{number(outcome.lost)} locks were LOST ({reasons}).")
    if outcome.owned_at_end is None:
        sentences.append(f"Who owns the locks is not known: {outcome.trouble}.")
    elif outcome.lost == 0 and outcome.owned_at_end == outcome.acquired:
        sentences.append(f"Nothing was lost: the server says that all {number(outcome.acquired)} were ours at the end.")
    else:
        ours = number(outcome.owned_at_end)
        sentences.append(f"The server says that {ours} of {number(outcome.acquired)} were ours at the end.")
    return " ".join(sentences)


def rows(outcome: Outcome) -> list[Row]:
    """Return the lines of the table."""
    calls = outcome.renewed / outcome.batches if outcome.batches else None
    reasons = ", ".join(f"{reason}: {number(times)}" for reason, times in outcome.lost_by_reason.items())
    client_us, server_us = outcome.client_us_per_renewal, outcome.server_us_per_renewal
    left = "no key" if outcome.left_at_server == 0 else f"{number(outcome.left_at_server)} keys"
    found: list[Row] = [
        ("held at end", number(outcome.held_at_end), f"of {number(outcome.locks)}, after {duration(outcome.held_s)}"),
        ("owned at end", number(outcome.owned_at_end), "keys with our token, as asked of the server"),
        ("lost", number(outcome.lost), reasons or "from first to last"),
        ("unknown", number(outcome.unknown), "renewals without an answer, tried again"),
        ("renewals", number(outcome.renewed), f"{number(outcome.renewals_per_s)} per second"),
        ("batches", number(outcome.batches), f"{number(calls, '.1f')} renewals each"),
        ("lag p50", duration(outcome.renewal_lag_p50_s), "from due to confirmed by the server"),
        ("lag p99", duration(outcome.renewal_lag_p99_s), ""),
        ("lag max", duration(outcome.renewal_lag_max_s), ""),
        ("time left", duration(outcome.renewal_slack_min_s), f"least that was left of {outcome.timeout_s:g} s"),
        ("thread", share(outcome.wheel_cores), f"of a core, {number(client_us, '.2f')} us a renewal"),
    ]
    if outcome.server_cores is not None:
        found.append(("server", share(outcome.server_cores), f"of a core, {number(server_us, '.2f')} us a renewal"))
    found += [
        ("acquired in", duration(outcome.acquire_s), f"{number(outcome.locks_per_s)} locks per second, in bulk"),
        ("released in", duration(outcome.close_s), f"{left} left behind at the server"),
    ]
    return found


def show(console: Console, outcome: Outcome, *, embedded: bool) -> None:
    """Print summary and table: with colours on a terminal, as plain lines elsewhere.

    ``embedded``: whether the server runs in this process.
    """
    table = rows(outcome)
    if embedded:
        table.append(("server", "fakeredis", "in this process; a real one answers sooner: --redis URL"))
    elif outcome.acquired >= _ENOUGH_TO_WEIGH:  # and the memory is not that of the server, too
        table.append(("memory", f"{number(outcome.rss_bytes_per_lock)} B", "per lock, names and all"))

    def style(what: str) -> str:
        bad = (what == "lost" and outcome.lost) or (what == "owned at end" and outcome.owned_at_end != outcome.locks)
        good = what in ("lost", "owned at end")
        return "bold red" if bad else "bold green" if good else "bold"

    colour = "green" if outcome.ok else "yellow" if outcome.interrupted and not outcome.lost else "red"
    title = f"{number(outcome.acquired)} locks, one thread, {outcome.server}"
    present(console, title, table, summary(outcome), colour, style)
