"""The report of a run: a summary, a table for people, a JSON object for programs."""

from __future__ import annotations

import dataclasses

from rich.console import Console

from wheel_lock.cli import output
from wheel_lock.cli.demo.outcome import Outcome
from wheel_lock.cli.output import Row, duration, number, present, share

_ENOUGH_TO_WEIGH = 10_000  # with fewer locks, single pages of memory dominate the result


def to_json(outcome: Outcome) -> str:
    """Return the outcome as one line of JSON; unknown values are null."""
    return output.to_json({**dataclasses.asdict(outcome), "ok": outcome.ok})


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
