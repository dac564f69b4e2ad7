"""The command ``ls``: all locks whose names match a pattern."""

from __future__ import annotations

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


class Listing:
    """The names that are to be listed, each once, and the number of those that are not."""

    def __init__(self, everything: bool) -> None:
        self._everything = everything
        self._seen: set[bytes] = set()
        self.locks: int = 0
        self.foreign: int = 0
        self.unreadable: int = 0
        self.problem: str | None = None

    def choose(self, found: Iterable[Found]) -> Iterator[Found]:
        """Yield what is to be listed; count the rest."""
        for one in found:
            kind = one.state.kind
            if kind == "free" or one.name in self._seen:
                continue
            if kind == "foreign":
                self.foreign += 1
                if not self._everything:
                    continue
            elif kind == "unreadable":
                self.unreadable += 1
                self.problem = self.problem or one.state.problem
            else:
                self.locks += 1
            self._seen.add(one.name)
            yield one


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
    console, listing = output.console(), Listing(everything)
    rows: list[Found] = []
    with closing(target.find(redis)) as found, output.progress(quiet=True) as progress:
        progress.stage("looking for locks", 0.0)
        chosen = listing.choose(look_for(found, pattern, progress.advance))
        if not as_json and not output.pretty(console):
            for one in chosen:
                output.line("\t".join(show.row(one)))
        else:
            rows = sorted(chosen, key=lambda one: one.name)
    if as_json:
        summary = {"pattern": pattern, "found": listing.locks, "foreign": listing.foreign}
        locks = [show.fields(one) for one in rows]
        output.line(
            output.to_json({"server": found.address, **summary, "unreadable": listing.unreadable, "locks": locks})
        )
    elif output.pretty(console):
        _table(console, rows, listing)
    elif listing.foreign and not everything:
        output.complain(f"{_keys(listing.foreign)} of other kinds: --all lists them")
    if listing.unreadable:
        raise Refusal(f"{_keys(listing.unreadable)} cannot be read: {listing.problem or 'no right to them'}")


def _table(console: Console, rows: list[Found], listing: Listing) -> None:
    if rows:
        console.print(show.table(rows[:_MOST_ROWS]))
    if len(rows) > _MOST_ROWS:
        console.print(f"... and {len(rows) - _MOST_ROWS:,} more: narrow the pattern, or use a pipe or --json")
    locks = "1 lock" if listing.locks == 1 else f"{listing.locks:,} locks"
    others = f", and {_keys(listing.foreign)} of other kinds" if listing.foreign else ""
    console.print(Text(locks + others, style="dim"))


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"
