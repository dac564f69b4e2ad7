"""The command ``inspect``: everything a server has about the lock of one name."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from wheel_lock.cli import output, target
from wheel_lock.cli.arguments import NO, OK, AsJson, RedisUrl
from wheel_lock.cli.locks import show
from wheel_lock.cli.locks.looking import Found, key_of, look_at

LockName = Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.")]


def inspect(redis: RedisUrl, name: LockName, as_json: AsJson = False) -> None:
    """Show one lock: kind, holders, remaining time, hold count, permits, waiters and the last fence.

    Ends with status 0 if the lock is held; 3 if it is free, or the key belongs to no lock; 1 if the server is not
    there, refuses, or the key cannot be read; 2 if the command line is wrong; 130 if it was interrupted.
    """
    key = key_of(name)
    with closing(target.find(redis)) as found:
        state = look_at(found, key)
    one = Found(key, state)
    if as_json:
        output.line(output.to_json(show.fields(one)))
    if state.kind == "unreadable":
        raise show.unreadable(one)
    if not as_json:
        output.present(output.console(), show.name_text(key), show.details(state), *sentence_about(one))
    raise typer.Exit(OK if state.is_held else NO)


def sentence_about(found: Found) -> tuple[str, str]:
    """Return the sentence about a lock, and its colour."""
    name, state = show.name_text(found.name), found.state
    if state.kind == "foreign":
        return (
            f"{name} is a {state.key_type} that belongs to no lock, or to one whose token a caller has chosen.",
            "yellow",
        )
    if not state.is_held:
        waiting = f", and has {state.waiters:,} registered waiters" if state.waiters else ""
        return f"{name} is free{waiting}.", "green"
    return f"{name} is held by {show.row(found)[2]}.", "cyan"
