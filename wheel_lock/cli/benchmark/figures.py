"""The figures of a benchmark, and their table."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console

from wheel_lock.cli.measure import Measured
from wheel_lock.cli.output import Row, duration, number, present, share

TTL_S = 30.0  # time-to-live of all locks: what a killed benchmark leaves behind expires soon


@dataclass(slots=True, kw_only=True)
class Held:
    """Locks that were held for a while, and their renewals. None stands for unknown values."""

    locks: int
    renew_every_s: float  # between renewals of one lock
    renewed: int  # renewals confirmed in the window
    renewals_per_s: float | None
    lag_p50_s: float | None  # from due to confirmed
    lag_p99_s: float | None
    client_cores: float | None  # CPU time of the thread that renews, per second
    client_us_per_renewal: float | None
    server_cores: float | None  # the same for all masters, less what they used before the measurement
    server_us_per_renewal: float | None


@dataclass(slots=True, kw_only=True)
class Figures(Measured):
    """All figures of a benchmark.

    Attributes:
        kind, masters: The kind of the server, and the number of its masters.
        prefix: The beginning of the names of all locks.
        round_trip_p50_s, round_trip_p99_s: Of PING, on one connection.
        server_busy_cores: CPU of all masters before anything was measured.
        held: Locks held at a moderate rate of renewals, by number.
        saturated: Locks renewed as fast as possible.
        pairs_per_s: Pairs of acquire and release per second, by the number of threads.
        hand_over_p50_s: From the release in one context to the grant in another that waits.
        client_locks, server_locks: The locks of ``timeout_s`` that one thread of this client, and the masters, can renew
            with all of their CPU.
        not_measured: The reason for each figure that could not be had.
        interrupted: The exit status if a signal ended the measurement early.
    """

    kind: str
    masters: int
    prefix: str
    round_trip_p50_s: float | None = None
    round_trip_p99_s: float | None = None
    server_busy_cores: float | None = None
    held: list[Held] = field(default_factory=list)
    saturated: Held | None = None
    pairs_per_s: dict[int, float | None] = field(default_factory=dict)
    hand_over_p50_s: float | None = None
    client_locks: int | None = None
    server_locks: int | None = None
    not_measured: dict[str, str] = field(default_factory=dict)
    interrupted: int | None = None

    @property
    def ok(self) -> bool:
        """True if everything was measured, nothing was lost, and nothing was left behind."""
        return not (self.interrupted or self.trouble or self.lost or self.left_at_server)

    @property
    def exit_status(self) -> int:
        """The exit status of the process: 0, 1 if something failed or was lost, 130 or 143 after a signal."""
        return self.interrupted or int(not self.ok)


def rows(figures: Figures) -> list[Row]:
    """Return the lines of the table: those of what was measured."""
    found: list[Row] = []

    def add(what: str, value: object, text: str, meaning: str) -> None:
        if value is not None:
            found.append((what, text, meaning))

    def add_cost(held: Held) -> None:
        for side, us in (("client", held.client_us_per_renewal), ("server", held.server_us_per_renewal)):
            add(f"  {side}", us, f"{number(us, '.2f')} us", f"CPU of the {side} per renewal")

    rtt, busy, handover = figures.round_trip_p50_s, figures.server_busy_cores, figures.hand_over_p50_s
    add("round trip", rtt, duration(rtt), f"median of PING on one connection, p99 {duration(figures.round_trip_p99_s)}")
    add("server", busy, share(busy), "of a core in use before, for others")
    for held in figures.held:
        p50, p99, every = held.lag_p50_s, duration(held.lag_p99_s), duration(held.renew_every_s)
        add(f"{number(held.locks)} held", p50, duration(p50), f"median lag, p99 {p99}; renewed every {every}")
        add_cost(held)
    if (full := figures.saturated) is not None:
        rate = full.renewals_per_s
        cores = f"{share(full.client_cores)} of a core here, {share(full.server_cores)} there"
        add("full speed", rate, f"{number(rate)}/s", f"renewals, at {cores}")
        add_cost(full)
    for threads, pairs in figures.pairs_per_s.items():
        add(f"{threads} thread{'s' * (threads > 1)}", pairs, f"{number(pairs)}/s", "acquire+release of free locks")
    add("hand-over", handover, duration(handover), "median: release here, grant in another context")
    locks = f"locks of {figures.timeout_s:g} s"
    rest = "the rest of its core" if figures.masters == 1 else f"the rest of {figures.masters} cores"
    holds = (("client", figures.client_locks, "one core for its thread"), ("server", figures.server_locks, rest))
    for side, most, cpu in holds:
        add(f"{side} holds", most, number(most), f"{locks} at most: {cpu}")
    return found


def summary(figures: Figures) -> str:
    """Return what went wrong, or that nothing did, in one or more sentences."""
    sentences = []
    if figures.interrupted is not None:
        sentences.append("Interrupted: the table has what was measured until then.")
    elif figures.trouble is not None:
        sentences.append("Ended early: the table has what was measured until then.")
    if figures.lost:
        sentences.append(f"{number(figures.lost)} locks were LOST meanwhile.")
    if figures.left_at_server is None:
        sentences.append(f"Which keys are left is not known; they expire within {TTL_S:g} s.")
    elif figures.left_at_server:
        sentences.append(f"{number(figures.left_at_server)} keys are left; they expire within {TTL_S:g} s.")
    else:
        sentences.append("No key is left behind.")
    return " ".join(sentences)


def show(console: Console, figures: Figures) -> None:
    """Print the table and the summary: with colours on a terminal, as plain lines elsewhere."""
    table = rows(figures)
    reasons: dict[str, list[str]] = {}
    for figure, reason in figures.not_measured.items():
        reasons.setdefault(reason, []).append(figure)
    missing = [f"Not measured: {', '.join(what)} ({reason})." for reason, what in reasons.items()]
    colour = "green" if figures.ok else "yellow" if figures.interrupted and not figures.lost else "red"
    title = f"{figures.server}, {figures.kind}, {figures.redis_server or 'version unknown'}"
    present(console, title, table, "\n".join([*missing, summary(figures)]), colour)
