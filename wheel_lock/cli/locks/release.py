"""The command ``release``: takes a lock away from the holders that it has shown."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from wheel_lock.cli import output, target
from wheel_lock.cli.arguments import NO, USAGE, AsJson, RedisUrl, Refusal
from wheel_lock.cli.locks import show
from wheel_lock.cli.locks.inspect import LockName, sentence_about
from wheel_lock.cli.locks.looking import Found, force_release, key_of, look_at

_MOST_HOLDERS = 10_000


def release(
    redis: RedisUrl,
    name: LockName,
    force: Annotated[bool, typer.Option("--force", help="Required: the holder has not asked for it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also a lock without expiry, and a string that may be no lock.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a lock away from its holders: show them, ask, and remove exactly those that were shown.

    A holder that acquires the lock in between is not touched. Waiters are woken, fences go on. The former holders go on
    with their work until their own check fails: their leases are lost at the next renewal, or at once if they watch
    their locks.

    Ends with status 0 if the lock was released; 3 if nothing was released: the lock is free, its holders have changed,
    the answer was no, or --all is missing; 1 if the server is not there, refuses, or the key cannot be read; 2 if the
    command line is wrong, or there is no terminal to ask on; 130 if it was interrupted.
    """
    if not force:
        raise Refusal("release takes a lock away from its holder: add --force", USAGE)
    key = key_of(name)
    if not yes and (as_json or sys.stdin is None or not sys.stdin.isatty()):
        raise Refusal("release asks on a terminal: add --yes", USAGE)
    console = output.console()
    with closing(target.find(redis)) as found:
        state = look_at(found, key, most=_MOST_HOLDERS)
        one = Found(key, state)
        if state.kind == "unreadable":
            raise show.unreadable(one)
        refusal = _refusal(one, everything)
        if not as_json and state.kind != "free":
            output.present(console, show.name_text(key), show.details(state), *sentence_about(one))
        if refusal is None and not yes and not typer.confirm(f"Release {show.name_text(key)}?", err=True):
            refusal = "not released: the answer was no"
        removed: int | None = 0
        if refusal is None:
            removed = force_release(found, key, state)
            if not removed:
                gone = removed == 0
                refusal = "it is free meanwhile" if gone else "it has other holders meanwhile, which keep it"
    if as_json:
        done = {"released": removed or 0, "reason": refusal}
        output.line(output.to_json({**show.fields(one), **done}))
    if refusal is not None:
        raise Refusal(f"{show.name_text(key)}: {refusal}", NO)
    if not as_json:
        holders = "1 holder" if removed == 1 else f"{removed:,} holders"
        output.line(f"{show.name_text(key)} is released: {holders} removed.")


def _refusal(found: Found, everything: bool) -> str | None:
    """Return why a lock is not released although its holders are known; None if it may be."""
    state = found.state
    if state.kind == "free":
        return "it is free"
    if state.kind == "redisson read-write" or not state.holders:
        what = "a read-write lock of Redisson" if state.kind != "foreign" else f"a {state.key_type} of something else"
        return f"not released: it is {what}, which this command does not change"
    if state.left_out:
        return f"not released: it has more than {_MOST_HOLDERS:,} holders"
    if everything:
        return None
    if state.kind == "foreign":
        return "not released: its value is not a token of this library; --all deletes it nevertheless"
    if any(holder.remaining_s is None for holder in state.holders):
        return "not released: it does not expire, so it may be no lock; --all releases it"
    return None
