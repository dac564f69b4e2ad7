"""The command ``ls``: all locks whose names match a pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wheel_lock.cli import output, target
from wheel_lock.cli.arguments import AsJson, RedisUrl, Refusal
from wheel_lock.cli.locks import show
from wheel_lock.cli.locks.looking import Found, look_for

_MOST_ROWS = 1000  # limit of a table on a terminal
_NO_LOCKS = ("free", "foreign", "unreadable")


def ls(
    redis: RedisUrl,
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="Which names, as for SCAN: * any text, ? one character, [ab] one of."),
    ] = "*",
    everything: Annotated[bool, typer.Option("--all", help="List keys that are not locks, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the locks of a server, or of all masters of a cluster: kind, holder, remaining time and hold count.

    The keys are found by SCAN, in batches, with a progress bar on stderr. Without a terminal each lock is one line of
    five columns, separated by tabs, as soon as it is found. Companion keys are left out; keys that belong to no lock
    are only counted, without a terminal on stderr.

    Ends with status 0, also if there is no lock; 1 if the server is not there, refuses, or some keys cannot be read;
    2 if the command line is wrong; 130 if it was interrupted.
    """
    console, counts, seen = output.console(), Counter[str](), set[bytes]()
    problem = None

    def chosen(found: Iterable[Found]) -> Iterator[Found]:
        """Yield what is to be listed, each name once; count it, and what is not."""
        nonlocal problem
        for one in found:
            kind = one.state.kind if one.state.kind in _NO_LOCKS else "lock"
            if kind == "free" or one.name in seen:
                continue
            seen.add(one.name)
            counts[kind] += 1
            problem = problem or one.state.problem
            if everything or kind != "foreign":
                yield one

    rows: list[Found] = []
    with closing(target.find(redis)) as found, output.Progress(quiet=True) as progress:
        progress.stage("looking for locks", 0.0)
        listed = chosen(look_for(found, pattern, progress.advance))
        if not as_json and not output.pretty(console):
            for one in listed:
                output.line("\t".join(show.row(one)))
        else:
            rows = sorted(listed, key=lambda one: one.name)
    if as_json:
        summary = {"found": counts["lock"], "foreign": counts["foreign"], "unreadable": counts["unreadable"]}
        locks = [show.fields(one) for one in rows]
        output.line(output.to_json({"server": found.address, "pattern": pattern, **summary, "locks": locks}))
    elif output.pretty(console):
        _table(console, rows, counts)
    elif counts["foreign"] and not everything:
        output.complain(f"{_keys(counts['foreign'])} of other kinds: --all lists them")
    if counts["unreadable"]:
        raise Refusal(f"{_keys(counts['unreadable'])} cannot be read: {problem or 'no right to them'}")


def _table(console: Console, rows: list[Found], counts: Counter[str]) -> None:
    if rows:
        console.print(show.table(rows[:_MOST_ROWS]))
    if len(rows) > _MOST_ROWS:
        console.print(f"... and {len(rows) - _MOST_ROWS:,} more: narrow the pattern, or use a pipe or --json")
    locks = "1 lock" if counts["lock"] == 1 else f"{counts['lock']:,} locks"
    others = f", and {_keys(counts['foreign'])} of other kinds" if counts["foreign"] else ""
    console.print(Text(locks + others, style="dim"))


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"
