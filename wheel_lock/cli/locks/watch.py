"""The command ``watch``: locks as they are acquired and released."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wheel_lock.cli import output, target
from wheel_lock.cli.arguments import TERMINATED, RedisUrl, seconds_option
from wheel_lock.cli.locks import show
from wheel_lock.cli.locks.looking import Found, key_of
from wheel_lock.cli.locks.watching import Change, Watcher, is_pattern
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.cli.target import Target

_LEAST_INTERVAL_S = 0.05
_PAUSE_SHARE = 4  # after polling very many locks, the pause is this multiple of the poll's duration
_CURSOR = b"\x1b[?25h\n"  # shows the cursor
_RECENT = 10  # number of changes shown on a terminal
_COLOURS = {"acquired": "green", "held": "green", "released": "yellow", "unreadable": "red"}


def watch(
    redis: RedisUrl,
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATTERN", help="A lock's name, or a pattern as for SCAN: with *, ? or [.")
    ],
    interval: Annotated[float, seconds_option("interval", "Between two polls.", least=_LEAST_INTERVAL_S)] = 0.5,
    seconds: Annotated[
        float | None, seconds_option("seconds", "How long to watch; without it until Ctrl-C.", above=0.0)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each change.")] = False,
) -> None:
    """Show locks as they are acquired and released, live on a terminal, as one line for each change elsewhere.

    The server is asked at intervals, so a lock that is held between two polls only does not show. A line has six columns,
    separated by tabs: time, event, name, kind, holder, remaining time. If the server goes away it is asked until it is
    back.

    Ends with status 0 after --seconds; 1 if the first poll fails, or the one key cannot be read; 2 if the command
    line is wrong; 130 or 143 if it was ended by Ctrl-C or SIGTERM.
    """
    key = None if is_pattern(name) else key_of(name)
    console = output.console()
    on_terminal = not as_json and output.pretty(console)
    with _terminated(on_terminal), ExitStack() as stack:
        display = stack.enter_context(_live(console, name)) if on_terminal else _Lines(as_json)
        _watch(redis, Watcher(key, name), display, interval, seconds, alone=key is not None)


def _watch(
    url: str, watcher: Watcher, display: _Screen | _Lines, interval_s: float, seconds: float | None, *, alone: bool
) -> None:
    """Poll and show until the time is over. Raises ServerTrouble only if the first poll fails."""
    end = None if seconds is None else time.monotonic() + seconds
    found: Target | None = None
    trouble: str | None = None
    first = True
    try:
        while True:
            began = time.monotonic()
            try:
                found = found or target.find(url)
                states, changes = watcher.look(found)
            except ServerTrouble as error:
                if first:
                    raise
                if found is not None:
                    found.close()
                    found = None  # a cluster may have other masters when it is back
                if trouble is None:
                    output.complain(f"{error.sentence}; trying again")
                trouble = error.sentence
            else:
                if trouble is not None:
                    output.complain(f"the server {found.address} answers again")
                    trouble = None
                if first and alone and states[0].state.kind == "unreadable":
                    raise show.unreadable(states[0])
                display.show(states, changes)
                first = False
            now = time.monotonic()
            pause = max(interval_s, (now - began) * _PAUSE_SHARE)
            if end is not None and now + pause > end:
                time.sleep(max(end - now, 0.0))
                return
            time.sleep(pause)
    finally:
        if found is not None:
            found.close()


class _Lines:
    """A line on stdout for each change."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, found: Sequence[Found], changes: Sequence[Change]) -> None:
        for change in changes:
            if self._as_json:
                output.line(json.dumps(_fields(change)))
            else:
                output.line("\t".join(_columns(change)))


class _Screen:
    """A table of the locks that are held, and the latest changes, drawn on a terminal."""

    def __init__(self, console: Console, live: Live, title: str) -> None:
        self._console = console
        self._live = live
        self._title = title
        self._recent: deque[Change] = deque(maxlen=_RECENT)

    def show(self, found: Sequence[Found], changes: Sequence[Change]) -> None:
        self._recent.extend(change for change in changes if change.event != "held")
        room = max(self._console.height - _RECENT - 5, 3)
        table = show.table(found[:room])
        more = Text(f"... and {len(found) - room:,} more" if len(found) > room else "", style="dim")
        lines = [Text("  ".join(_columns(change)), style=_COLOURS.get(change.event, "")) for change in self._recent]
        title = Text(f"{output.printable(self._title)}: {len(found):,} watched", style="bold")
        self._live.update(Group(title, table, more, *lines), refresh=True)


@contextmanager
def _live(console: Console, title: str) -> Iterator[_Screen]:
    with Live(console=console, auto_refresh=False) as live:
        yield _Screen(console, live, title)


def _columns(change: Change) -> tuple[str, ...]:
    state, holder = change.state, change.holder
    at = change.at.isoformat(" ", "milliseconds")
    gone = holder is None or change.event == "released"
    return (
        at,
        change.event,
        show.name_text(change.name),
        show.kind_text(state),
        "-" if holder is None else show.holder_text(holder),
        "-" if holder is None or gone else show.remaining_text(holder.remaining_s),
    )


def _fields(change: Change) -> dict[str, Any]:
    return {
        "at": change.at.isoformat("T", "milliseconds"),
        "event": change.event,
        "name": change.name.decode("utf-8", "backslashreplace"),
        "kind": change.state.kind,
        "holder": None if change.holder is None else asdict(change.holder),
        "problem": change.state.problem,
    }


@contextmanager
def _terminated(on_terminal: bool) -> Iterator[None]:
    """Have SIGTERM end the process with status 143, and give the terminal its cursor back."""

    def end(number: int, frame: object) -> None:
        # No exception: a finaliser that it strikes would swallow it. Each line is flushed already.
        try:
            if on_terminal:
                os.write(sys.stdout.fileno(), _CURSOR)
        finally:
            os._exit(TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
