"""The report of a run: a verdict, a table for people, a JSON object for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from wheel_lock.cli.outcome import Outcome

_ENOUGH_TO_WEIGH = 10_000  # with fewer locks, single pages of memory dominate the result

Row = tuple[str, str, str]  # a line of the table: title, value, and explanation


def duration(value_s: float | None) -> str:
    """Return a time with a suitable unit.

    >>> duration(0.00081), duration(0.0042), duration(1.934), duration(None)
    ('810 us', '4.2 ms', '1.93 s', '-')
    """
    if value_s is None:
        return "-"
    if value_s < 0.001:
        return f"{value_s * 1e6:.0f} us"
    return f"{value_s * 1e3:.3g} ms" if value_s < 1 else f"{value_s:.2f} s"


def number(value: float | None, form: str = ",.0f") -> str:
    """Return a number with thousands separators, or a dash if it is None."""
    return "-" if value is None else format(value, form)


def share(value: float | None) -> str:
    """Return a share of one core as a percentage, or a dash if it is None."""
    return "-" if value is None else f"{value:.1%}"


def to_json(outcome: Outcome) -> str:
    """Return the outcome as one line of JSON; unknown values are null."""
    fields = {**dataclasses.asdict(outcome), "ok": outcome.ok}
    return json.dumps(rounded(fields), allow_nan=False)


def rounded(value: object) -> object:
    """Return ``value`` with all floats in it, in dicts and lists as well, rounded to six digits."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def verdict(outcome: Outcome) -> str:
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
        ("slack min", duration(outcome.renewal_slack_min_s), f"least that was left of {outcome.timeout_s:g} s"),
        ("thread", share(outcome.wheel_cores), f"of a core, {number(client_us, '.2f')} us a renewal"),
    ]
    if outcome.server_cores is not None:
        found.append(("server", share(outcome.server_cores), f"of a core, {number(server_us, '.2f')} us a renewal"))
    found += [
        ("acquired in", duration(outcome.acquire_s), f"{number(outcome.locks_per_s)} locks per second, in bulk"),
        ("released in", duration(outcome.close_s), f"{left} left behind at the server"),
    ]
    return found


def pretty(console: Console) -> bool:
    """Return whether the console is a terminal with UTF-8 and cursor control."""
    return console.file.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf")


def show(console: Console, outcome: Outcome, *, embedded: bool) -> None:
    """Print verdict and table: with colours on a terminal, as plain lines elsewhere.

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
    present(console, title, table, verdict(outcome), colour, style)


def present(
    console: Console,
    title: str,
    table: Sequence[Row],
    sentence: str,
    colour: str,
    style: Callable[[str], str] = lambda what: "bold",
) -> None:
    """Print a table and a verdict, in a panel on a terminal: ``colour`` is green if all is well.

    Args:
        style: Returns the style of the value in the line with this title.
    """
    if not pretty(console):
        for what, value, meaning in table:
            print(f"  {what:<12} {value:>12}  {meaning}".rstrip(), file=console.file)
        print(sentence, file=console.file)
        return
    grid = Table.grid(Column(style="dim"), Column(justify="right"), Column(style="dim"), padding=(0, 2))
    for what, value, meaning in table:
        grid.add_row(what, Text(value, style=style(what)), meaning)
    mark = {"green": "✔ ", "red": "✘ "}.get(colour, "")
    console.print(
        Panel(
            Group(grid, "", Text(mark + sentence, style=f"bold {colour}")),
            title=title,
            title_align="left",
            border_style=colour,
            padding=(1, 2),
            expand=False,
        )
    )
